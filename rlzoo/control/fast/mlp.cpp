// An MLP on many rows: its outputs, and the gradients of its parameters, each as one call.

#include <algorithm>
#include <vector>

#include "vectors.h"

namespace {

// A block of a product has ROWS rows of PANEL vectors, whose sums lie in the processor's registers.
constexpr int ROWS = 6, PANEL = WIDTH == 8 ? 2 : 4;
constexpr int64_t CHUNK = 32 * ROWS;  // rows that go through all layers together, and lie in its cache

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

extern "C" {

struct Layer {
    const float *weight, *bias;      // (O, I), (O,)
    float *into_weight, *into_bias;  // their gradients are added here; null if there is none
    int64_t inputs, outputs;
    Activation activation;
};

// Writes the output (rows, O) of each layer. The values are x and the outputs.
void forward(const Layer* layers, int64_t count, int64_t rows, float* const* values) {
    std::vector<std::vector<float>> weights(count), biases(count);
    std::vector<float> wide;
    for (int64_t l = 0; l < count; l++) {
        const auto& [weight, bias, into_weight, into_bias, in, out, activation] = layers[l];
        weights[l].resize(in * whole(out)), biases[l].resize(whole(out));
        std::copy_n(bias, out, biases[l].data());
        for (int64_t o = 0; o < out; o++)
            for (int64_t i = 0; i < in; i++) weights[l][i * whole(out) + o] = weight[o * in + i];
    }
    for (int64_t first = 0; first < rows; first += CHUNK) {
        const int64_t m = std::min(CHUNK, rows - first);
        for (int64_t l = 0; l < count; l++) {
            const int64_t in = layers[l].inputs, out = layers[l].outputs, n = whole(out);
            const Matrix x = {values[l] + first * in, in};
            float *y = values[l + 1] + first * out, *into = y;
            if (n != out) wide.resize(m * n), into = wide.data();
            multiply(x, {weights[l].data(), n}, m, in, n, {into, n, biases[l].data(), false, layers[l].activation});
            for (int64_t i = 0; i < m && n != out; i++) std::copy_n(into + i * n, out, y + i * out);
        }
    }
}

// Adds the gradients of the parameters, given the gradient for the last output. Writes that for x if there is a place.
void backward(
    const Layer* layers, int64_t count, int64_t rows, const float* const* values, const float* grad, float* into_x
) {
    std::vector<float> slope, grads, weights, inputs, sums;
    for (int64_t first = 0; first < rows; first += CHUNK) {
        const int64_t m = std::min(CHUNK, rows - first);
        const float* from = grad + first * layers[count - 1].outputs;
        int64_t from_row = layers[count - 1].outputs;
        for (int64_t l = count - 1; l >= 0; l--) {
            const auto& [weight, bias, into_weight, into_bias, in, out, activation] = layers[l];
            const int64_t n = whole(in);
            const float *x = values[l] + first * in, *y = values[l + 1] + first * out;
            slope.resize(m * out);
            float* s = slope.data();
            for (int64_t i = 0; i < m; i++)
                for (int64_t o = 0; o < out; o++) {
                    const float g = from[i * from_row + o], z = y[i * out + o];
                    s[i * out + o] = activation == TANH ? g * (1 - z * z) : activation == RELU && z <= 0 ? 0 : g;
                }
            if (into_bias)
                for (int64_t i = 0; i < m; i++)
                    for (int64_t o = 0; o < out; o++) into_bias[o] += s[i * out + o];
            if (into_weight && n == in) {
                multiply({s, 1, out}, {x, in}, out, m, in, {into_weight, in, nullptr, true});
            } else if (into_weight) {
                sums.resize(out * n);
                multiply({s, 1, out}, padded(x, m, in, inputs), out, m, n, {sums.data(), n});
                for (int64_t o = 0; o < out; o++)
                    for (int64_t i = 0; i < in; i++) into_weight[o * in + i] += sums[o * n + i];
            }
            if (l == 0 && !into_x) break;
            grads.resize(m * n);
            multiply({s, out}, padded(weight, out, in, weights), m, out, n, {grads.data(), n});
            from = grads.data(), from_row = n;
        }
        for (int64_t i = 0; i < m && into_x; i++)
            std::copy_n(from + i * from_row, layers[0].inputs, into_x + (first + i) * layers[0].inputs);
    }
}

}  // extern "C"
