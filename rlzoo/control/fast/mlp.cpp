// An MLP on many rows: its outputs, and the gradients of its parameters, each as one call.

#include "products.h"

namespace {

constexpr int64_t CHUNK = 32 * ROWS;  // rows that go through all layers together, and lie in the processor's cache

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
