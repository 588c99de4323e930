// Vectors of the processor, and exp and tanh of one.

#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace {

#if defined(__AVX512F__)
constexpr int WIDTH = 16;
#elif defined(__AVX__)
constexpr int WIDTH = 8;
#else
constexpr int WIDTH = 4;
#endif
typedef float Vector __attribute__((vector_size(4 * WIDTH)));
typedef int32_t Bits __attribute__((vector_size(4 * WIDTH)));

Vector load(const float* x) {
    Vector v;
    std::memcpy(&v, x, sizeof v);
    return v;
}

void store(float* x, Vector v) { std::memcpy(x, &v, sizeof v); }

template <class T>
T clip(T x, T low, T high) {
    return x < low ? low : x > high ? high : x;  // keeps NaN, as NumPy does
}

// k of x = k ln 2 + r with |r| <= ln(2) / 2, as a power of two, and (exp(r) - 1) / r; x is changed to r.
Vector reduce(Vector& x, Vector& power) {
    const Vector shifted = x * 1.44269504f + 12582912.0f, k = shifted - 12582912.0f;
    x = (x - k * 0.693359375f) + k * 2.12194440e-4f;
    power = (Vector)(((Bits)shifted << 23) + 0x3f800000);
    Vector series = x * (1.0f / 5040) + 1.0f / 720;
    for (const float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 1.0f / 2, 1.0f}) series = series * x + c;
    return series;
}

// Within 2e-7 of exp x relative to it, up to exp(88); 0 below exp(-87).
Vector exp_of(Vector x) {
    Vector r = clip(x, Vector{} - 87, Vector{} + 88), power;
    const Vector series = reduce(r, power);
    return x < -87 ? Vector{} : power * (1 + series * r);
}

// e / (e + 2) with e = exp(2x) - 1, within 3e-7 of tanh x relative to it.
Vector tanh_of(Vector x) {
    Vector r = clip(2 * x, Vector{} - 18, Vector{} + 18), power;
    const Vector series = reduce(r, power), e = power * (series * r) + (power - 1);
    return e / (e + 2);
}

enum Activation : int64_t { LINEAR, TANH, RELU };

Vector activate(Activation activation, Vector x) {
    if (activation == TANH) return tanh_of(x);
    return activation == RELU ? (x < 0 ? Vector{} : x) : x;
}

}  // namespace
