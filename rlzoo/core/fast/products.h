// Matrix products in the processor's registers, for matrices that lie in its cache.

#pragma once

#include <algorithm>
#include <vector>

#include "vectors.h"

namespace {

// A block of a product has ROWS rows of PANEL vectors, whose sums lie in the processor's registers.
constexpr int ROWS = 6, PANEL = WIDTH == 8 ? 2 : 4;

int64_t whole(int64_t n) { return (n + WIDTH - 1) / WIDTH * WIDTH; }

struct Matrix {  // element (i, j) is at data[i * row + j * column]
    const float* data;
    int64_t row, column = 1;
};

struct Result {  // rows are whole vectors; `start` is added to each row, or else `added` to what is there
    float* data;
    int64_t row;
    const float* start = nullptr;
    bool added = false;
    Activation activation = LINEAR;
};

// Rows i to i + R and vectors j to j + V of A * B, with k products in each sum.
template <int R, int V>
void block(Matrix a, Matrix b, int64_t k, Result c, int64_t i, int64_t j) {
    Vector sums[R][V];
    float* const out = c.data + i * c.row + j;
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) {
            const float* from = c.start ? c.start + j + v * WIDTH : out + r * c.row + v * WIDTH;
            sums[r][v] = c.start || c.added ? load(from) : Vector{};
        }
    const float *x = a.data + i * a.row, *y = b.data + j;
    for (int64_t l = 0; l < k; l++, x += a.column, y += b.row) {
        Vector row[V];
        for (int v = 0; v < V; v++) row[v] = load(y + v * WIDTH);
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++) sums[r][v] += x[r * a.row] * row[v];
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) store(out + r * c.row + v * WIDTH, activate(c.activation, sums[r][v]));
}

template <int V>
void panel(Matrix a, Matrix b, int64_t m, int64_t k, Result c, int64_t j) {
    int64_t i = 0;
    for (; i + ROWS <= m; i += ROWS) block<ROWS, V>(a, b, k, c, i, j);
    for (; i + 2 <= m; i += 2) block<2, V>(a, b, k, c, i, j);
    if (i < m) block<1, V>(a, b, k, c, i, j);
}

// A (m, k) * B (k, n), where the rows of B and of the result are whole vectors.
void multiply(Matrix a, Matrix b, int64_t m, int64_t k, int64_t n, Result c) {
    int64_t j = 0;
    for (; j + PANEL * WIDTH <= n; j += PANEL * WIDTH) panel<PANEL>(a, b, m, k, c, j);
    for (; j < n; j += WIDTH) panel<1>(a, b, m, k, c, j);
}

// A matrix (m, n) whose rows are whole vectors: itself, or a copy in `memory`. What follows a row there is not used.
Matrix padded(const float* x, int64_t m, int64_t n, std::vector<float>& memory) {
    const int64_t wide = whole(n);
    if (wide == n) return {x, n};
    memory.resize(m * wide);
    for (int64_t i = 0; i < m; i++) std::copy_n(x + i * n, n, &memory[i * wide]);
    return {memory.data(), wide};
}

}  // namespace
