// Vectors of the processor, and tanh of one.

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

// e / (e + 2) with e = exp(2x) - 1, within 3e-7 of tanh x relative to it. With 2x = k ln 2 + r, e is
// 2^k (r + r^2 / 2 + ...) + (2^k - 1).
Vector tanh_of(Vector x) {
    const Vector y = clip(2 * x, Vector{} - 18, Vector{} + 18), shifted = y * 1.44269504f + 12582912.0f;
    const Vector k = shifted - 12582912.0f, r = (y - k * 0.693359375f) + k * 2.12194440e-4f;
    Vector series = r * (1.0f / 5040) + 1.0f / 720;
    for (const float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 1.0f / 2, 1.0f}) series = series * r + c;
    const Vector power = (Vector)(((Bits)shifted << 23) + 0x3f800000), e = power * (series * r) + (power - 1);
    return e / (e + 2);
}

enum Activation : int64_t { LINEAR, TANH, RELU };

Vector activate(Activation activation, Vector x) {
    if (activation == TANH) return tanh_of(x);
    return activation == RELU ? (x < 0 ? Vector{} : x) : x;
}

}  // namespace
