// What the loops that `codegen.py` writes have in common.

#if defined(__GNUC__) && !defined(__clang__)
// Partial redundancy elimination spoils the loops: with it they take a third longer.
#pragma GCC optimize("no-tree-pre")
#endif

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

typedef void (*Gemm)(
    const char*, const char*, const int*, const int*, const int*, const void*, const void*, const int*, const void*,
    const int*, const void*, void*, const int*);
typedef int (*Call)(int64_t);

struct Loop {
    int64_t i;
    void* const* tensors;
    char* memory;
    Gemm sgemm, dgemm;
    Call call;
    bool bad;
};

#define PART __attribute__((noinline)) static int

// Returns 0; 1 if a call of PyTorch failed; 2 if an index was wrong.
#define RUN(before, inside)                                                                                        \
    extern "C" int run(                                                                                            \
        int64_t count, void* const* tensors, char* memory, Gemm sgemm, Gemm dgemm, Call call) {                    \
        Loop loop = {0, tensors, memory, sgemm, dgemm, call, false};                                               \
        before;                                                                                                    \
        for (; loop.i < count; ++loop.i) {                                                                         \
            inside;                                                                                                \
        }                                                                                                          \
        return loop.bad ? 2 : 0;                                                                                   \
    }

// Row-major C (m, n) = scale A B + beta C, as the column-major product of the BLAS with its factors exchanged.
template <typename T>
void product(
    Gemm gemm, int m, int n, int k, T scale, const T* a, char a_is, int lda, const T* b, char b_is, int ldb, T beta, T* c) {
    gemm(&b_is, &a_is, &n, &m, &k, &scale, b, &ldb, a, &lda, &beta, c, &n);
}

// NaN stays NaN, as in PyTorch.
template <typename T>
inline T lower(T x, T y) {
    return x < y || x != x ? x : y;
}

template <typename T>
inline T upper(T x, T y) {
    return x > y || x != x ? x : y;
}

// Position `i` of `size`; the first one, and `bad`, if there is none.
inline int64_t checked(int64_t i, int64_t size, bool& bad) {
    const bool outside = i < 0 || i >= size;
    bad |= outside;
    return outside ? 0 : i;
}

inline float power_of_2(int32_t k) {
    const int32_t bits = (k + 127) << 23;
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// k and r of x = k ln 2 + r with |r| <= ln(2) / 2; the constant 1.5 * 2^23 rounds to an integer.
inline float reduced(float x, int32_t& k) {
    const float shifted = x * 1.44269504f + 12582912.0f, whole = shifted - 12582912.0f;
    k = int32_t(whole);
    return (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
}

// (exp(r) - 1) / r
inline float series(float r) {
    float sum = r * (1.0f / 5040) + 1.0f / 720;
    sum = sum * r + 1.0f / 120;
    sum = sum * r + 1.0f / 24;
    sum = sum * r + 1.0f / 6;
    sum = sum * r + 1.0f / 2;
    return sum * r + 1.0f;
}

// Within 2e-7 of exp x relative to it, without a branch.
inline float exp_of(float x) {
    int32_t k;
    const float clipped = x < -104 ? -104 : x > 89 ? 89 : x, r = reduced(clipped, k);
    const int32_t half = k >> 1;
    return (1 + r * series(r)) * power_of_2(half) * power_of_2(k - half);
}

// e / (e + 2) with e = exp(2x) - 1, within 3e-7 of tanh x relative to it.
inline float tanh_of(float x) {
    int32_t k;
    const float clipped = x < -9 ? -9 : x > 9 ? 9 : x, r = reduced(2 * clipped, k), power = power_of_2(k);
    const float e = power * (series(r) * r) + (power - 1);
    return e / (e + 2);
}

inline double exp_of(double x) { return std::exp(x); }
inline double tanh_of(double x) { return std::tanh(x); }

}  // namespace
