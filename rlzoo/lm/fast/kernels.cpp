// What a transformer computes between the products with its weights. Each function is one pass over its numbers, which
// are computed in float32 and kept in float32 or bfloat16.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "products.h"

namespace {

struct Half {  // a bfloat16: the first half of a float
    uint16_t bits;
};

typedef uint32_t Words __attribute__((vector_size(4 * WIDTH)));
typedef uint16_t Halves __attribute__((vector_size(2 * WIDTH)));

Vector wide(const float* x) { return load(x); }

Vector wide(const Half* x) {
    Halves h;
    std::memcpy(&h, x, sizeof h);
    return (Vector)(__builtin_convertvector(h, Words) << 16);
}

void narrow(float* y, Vector v) { store(y, v); }

void narrow(Half* y, Vector v) {
    const Words w = (Words)v, rounded = (w + 0x7fff + ((w >> 16) & 1)) >> 16;
    const Halves h = __builtin_convertvector(v == v ? rounded : Words{} + 0x7fc0, Halves);
    std::memcpy(y, &h, sizeof h);
}

// The first n numbers of a vector, and 0 after them.
template <class T>
Vector take(const T* x, int64_t n) {
    if (n >= WIDTH) return wide(x);
    T some[WIDTH] = {};
    std::copy_n(x, n, some);
    return wide(some);
}

template <class T>
void put(T* y, Vector v, int64_t n) {
    if (n >= WIDTH) return narrow(y, v);
    T some[WIDTH];
    narrow(some, v);
    std::copy_n(some, n, y);
}

float sum(Vector v) {
    float x[WIDTH];
    store(x, v);
    for (int n = WIDTH / 2; n; n /= 2)
        for (int i = 0; i < n; i++) x[i] += x[i + n];
    return x[0];
}

float largest(Vector v) {
    float x[WIDTH];
    store(x, v);
    for (int n = WIDTH / 2; n; n /= 2)
        for (int i = 0; i < n; i++) x[i] = std::max(x[i], x[i + n]);
    return x[0];
}

// Which lanes belong to the first n.
Bits first(int64_t n) {
    Bits lane;
    for (int i = 0; i < WIDTH; i++) lane[i] = i;
    return lane < int32_t(std::min<int64_t>(n, WIDTH));
}

// The largest of n numbers.
template <class T>
float largest_of(const T* x, int64_t n) {
    Vector most = Vector{} - INFINITY;
    for (int64_t j = 0; j < n; j += WIDTH) {
        const Vector y = first(n - j) ? take(x + j, n - j) : Vector{} - INFINITY;
        most = most > y ? most : y;
    }
    return largest(most);
}

typedef void (*Parallel)(void (*)(void*), void*, unsigned, unsigned);
Parallel parallel = nullptr;  // GOMP_parallel of the OpenMP that PyTorch uses

// work(0, memory), ..., work(count - 1, memory) in the threads of PyTorch, each with its own memory. Results must
// not depend on the order.
template <class Memory, class Work>
void each(int64_t count, const Work& work) {
    std::atomic<int64_t> next{0};
    auto some = [&] {
        Memory memory;
        for (int64_t i = next++; i < count; i = next++) work(i, memory);
    };
    if (count == 1 || !parallel) return some();
    parallel([](void* f) { (*static_cast<decltype(some)*>(f))(); }, &some, 0, 0);
}

constexpr int64_t CHUNK = 1 << 13;  // numbers of a task, of operations on single numbers
constexpr int64_t ROWS_OF_TASK = 32;

struct Nothing {};

// work(start, end) for the parts of `count`.
template <class Work>
void each_chunk(int64_t count, int64_t size, const Work& work) {
    each<Nothing>((count + size - 1) / size, [&](int64_t i, Nothing&) {
        work(i * size, std::min(count, (i + 1) * size));
    });
}

// Adds to a sum in float32.
template <class T>
void add_to(int64_t n, const T* x, float* total) {
    each_chunk(n, 8 * CHUNK, [=](int64_t i, int64_t end) {
        for (; i < end; i += WIDTH) put(total + i, take(total + i, end - i) + take(x + i, end - i), end - i);
    });
}

// y (n, m) = x (m, n) transposed, in squares of whole cache lines.
template <class T>
void transpose(int64_t m, int64_t n, const T* x, T* y) {
    constexpr int64_t SIDE = 64 / sizeof(T);
    each_chunk(n, SIDE, [=](int64_t left, int64_t right) {
        for (int64_t top = 0; top < m; top += SIDE)
            for (int64_t j = left; j < right; j++)
                for (int64_t i = top; i < std::min(top + SIDE, m); i++) y[j * m + i] = x[i * n + j];
    });
}

Vector sigmoid(Vector x) { return 1 / (1 + exp_of(-x)); }

template <class T>
void swiglu(int64_t n, const T* gate, const T* up, T* y) {
    each_chunk(n, CHUNK, [=](int64_t i, int64_t end) {
        for (; i < end; i += WIDTH) {
            const Vector g = take(gate + i, end - i);
            put(y + i, g * sigmoid(g) * take(up + i, end - i), end - i);
        }
    });
}

template <class T>
void swiglu_backward(int64_t n, const T* gate, const T* up, const T* dy, T* d_gate, T* d_up) {
    each_chunk(n, CHUNK, [=](int64_t i, int64_t end) {
        for (; i < end; i += WIDTH) {
            const Vector g = take(gate + i, end - i), d = take(dy + i, end - i), s = sigmoid(g);
            put(d_up + i, d * g * s, end - i);
            put(d_gate + i, d * take(up + i, end - i) * s * (1 + g * (1 - s)), end - i);
        }
    });
}

constexpr float SLOPE = 0.7978845608f, CUBE = 0.044715f;  // GELU is x / 2 (1 + tanh(SLOPE (x + CUBE x^3)))

template <class T>
void gelu(int64_t n, const T* from, T* y) {
    each_chunk(n, CHUNK, [=](int64_t i, int64_t end) {
        for (; i < end; i += WIDTH) {
            const Vector x = take(from + i, end - i);
            put(y + i, x * sigmoid(2 * SLOPE * x * (1 + CUBE * x * x)), end - i);
        }
    });
}

template <class T>
void gelu_backward(int64_t n, const T* from, const T* dy, T* dx) {
    each_chunk(n, CHUNK, [=](int64_t i, int64_t end) {
        for (; i < end; i += WIDTH) {
            const Vector x = take(from + i, end - i), s = sigmoid(2 * SLOPE * x * (1 + CUBE * x * x));
            const Vector slope = 2 * SLOPE * (1 + 3 * CUBE * x * x);
            put(dx + i, take(dy + i, end - i) * s * (1 + x * (1 - s) * slope), end - i);
        }
    });
}

// y = scale x weight, where scale is 1 / sqrt(mean of x^2 + eps).
template <class T>
void rms_norm(int64_t rows, int64_t n, float eps, const float* x, const float* weight, T* y, float* scale) {
    each_chunk(rows, ROWS_OF_TASK, [=](int64_t r, int64_t end) {
        for (; r < end; r++) {
            const float* row = x + r * n;
            Vector squares{};
            for (int64_t i = 0; i < n; i += WIDTH) {
                const Vector v = take(row + i, n - i);
                squares += v * v;
            }
            const float s = scale[r] = 1 / std::sqrt(sum(squares) / n + eps);
            for (int64_t i = 0; i < n; i += WIDTH)
                put(y + r * n + i, s * take(row + i, n - i) * take(weight + i, n - i), n - i);
        }
    });
}

// Writes the gradient for x, and adds that for the weight.
template <class T>
void rms_norm_backward(
    int64_t rows, int64_t n, const float* x, const float* weight, const float* scale, const T* dy, float* dx,
    float* d_weight
) {
    const int64_t tasks = (rows + ROWS_OF_TASK - 1) / ROWS_OF_TASK;
    std::vector<float> sums(d_weight ? tasks * n : 0);
    each_chunk(rows, ROWS_OF_TASK, [&](int64_t r, int64_t end) {
        float* const mine = d_weight ? &sums[r / ROWS_OF_TASK * n] : nullptr;
        for (; r < end; r++) {
            const float *row = x + r * n, s = scale[r];
            const T* d = dy + r * n;
            Vector dots{};
            for (int64_t i = 0; i < n; i += WIDTH)
                dots += take(d + i, n - i) * take(weight + i, n - i) * take(row + i, n - i);
            const float mean = s * s * sum(dots) / n;
            for (int64_t i = 0; i < n; i += WIDTH) {
                const Vector v = take(row + i, n - i), g = take(d + i, n - i);
                put(dx + r * n + i, s * (g * take(weight + i, n - i) - mean * v), n - i);
                if (mine) put(mine + i, take(mine + i, n - i) + s * g * v, n - i);
            }
        }
    });
    for (int64_t t = 0; d_weight && t < tasks; t++)
        for (int64_t i = 0; i < n; i++) d_weight[i] += sums[t * n + i];
}

// Attention.

struct Segment {  // tokens of a row: each sees the `count` tokens from `before` on, and its own segment up to itself
    int64_t start, length, before, count;
};

template <class T>
struct Heads {  // number e of head h of token t is at data[t * token + h * head + e]
    T* data;
    int64_t token, head;
};

struct Shape {
    int64_t heads, groups, size;  // the heads of a group share keys and values, of which each has `size` numbers
    float scale;                  // of the scores
    const float *cos, *sin;       // (tokens, size): by which queries and keys are rotated; null if they are already
};

constexpr int64_t QUERIES = 48;  // of a block

// Reads or writes tokens of a head, as rows of whole vectors.

template <class T>
void read(Heads<const T> x, int64_t head, int64_t start, int64_t count, int64_t size, float* rows) {
    const int64_t n = whole(size);
    for (int64_t t = 0; t < count; t++) {
        const T* from = x.data + (start + t) * x.token + head * x.head;
        for (int64_t e = 0; e < size; e += WIDTH) store(rows + t * n + e, take(from + e, size - e));
    }
}

template <class T>
void write(Heads<T> x, int64_t head, int64_t start, int64_t count, int64_t size, const float* rows) {
    const int64_t n = whole(size);
    for (int64_t t = 0; t < count; t++) {
        T* into = x.data + (start + t) * x.token + head * x.head;
        for (int64_t e = 0; e < size; e += WIDTH) put(into + e, load(rows + t * n + e), size - e);
    }
}

// Rotates numbers e and e + size / 2 of each token by its angles, or back.
void rotate(const Shape& shape, int64_t start, int64_t count, float* rows, bool back = false) {
    if (!shape.cos) return;
    const int64_t n = whole(shape.size), half = shape.size / 2;
    for (int64_t t = 0; t < count; t++) {
        const float *cos = shape.cos + (start + t) * shape.size, *sin = shape.sin + (start + t) * shape.size;
        float *x = rows + t * n, *y = x + half;
        for (int64_t e = 0; e < half; e++) {
            const float a = x[e], b = y[e];
            x[e] = back ? a * cos[e] + b * sin[e + half] : a * cos[e] - b * sin[e];
            y[e] = back ? b * cos[e + half] - a * sin[e] : b * cos[e + half] + a * sin[e + half];
        }
    }
}

// Rows of whole vectors as columns, which are whole vectors too.
void transpose(const float* rows, int64_t count, int64_t size, float* columns) {
    const int64_t n = whole(size), m = whole(count);
    for (int64_t e = 0; e < size; e++)
        for (int64_t t = 0; t < count; t++) columns[e * m + t] = rows[t * n + e];
    for (int64_t e = 0; e < size; e++) std::fill(columns + e * m + count, columns + (e + 1) * m, 0.0f);
}

// The keys or values that a segment sees, as rows and as columns.
struct Seen {
    std::vector<float> rows, columns;

    template <class T>
    void read_all(Heads<const T> x, int64_t group, const Segment& s, const Shape& shape, bool rotated, bool turned) {
        const int64_t n = whole(shape.size), seen = s.count + s.length;
        rows.resize(seen * n);
        float* const own = rows.data() + s.count * n;
        read(x, group, s.before, s.count, shape.size, rows.data());
        read(x, group, s.start, s.length, shape.size, own);
        if (rotated) rotate(shape, s.before, s.count, rows.data()), rotate(shape, s.start, s.length, own);
        if (!turned) return;
        columns.resize(shape.size * whole(seen));
        transpose(rows.data(), seen, shape.size, columns.data());
    }
};

// Queries of a segment, and their scores, which become probabilities: rows of whole vectors.
struct Block {
    int64_t start, count, seen, row;  // the first token, their number, what the last of them sees, the length of a row
    std::vector<float> queries, probs;

    float* of(int64_t query) { return probs.data() + query * row; }

    template <class T>
    void scores(Heads<const T> q, int64_t head, const Segment& s, int64_t from, const Shape& shape, const Seen& keys) {
        start = s.start + from, count = std::min(QUERIES, s.length - from), seen = s.count + from + count;
        row = whole(s.count + s.length);
        const int64_t n = whole(shape.size);
        queries.resize(count * n), probs.resize(count * row);
        read(q, head, start, count, shape.size, queries.data());
        rotate(shape, start, count, queries.data());
        for (float& x : queries) x *= shape.scale;
        multiply({queries.data(), n}, {keys.columns.data(), row}, count, shape.size, whole(seen), {probs.data(), row});
    }

    // What query i sees.
    int64_t seen_by(int64_t i) const { return seen - count + i + 1; }

    // exp(score - log_z) of query i, 0 for what it does not see. Returns their sum.
    float exponentiate(int64_t i, float log_z) {
        Vector total{};
        float* const p = of(i);
        for (int64_t j = 0; j < whole(seen); j += WIDTH) {
            const Bits is_seen = first(std::max<int64_t>(seen_by(i) - j, 0));
            const Vector e = is_seen ? exp_of(load(p + j) - log_z) : Vector{};
            store(p + j, e);
            total += e;
        }
        return sum(total);
    }

    // From the probabilities of query i, and the gradient for them, to the gradient for its scores.
    void to_gradient(int64_t i, const float* d_probs) {
        float* const p = of(i);
        Vector products{};
        for (int64_t j = 0; j < whole(seen); j += WIDTH) products += load(p + j) * load(d_probs + j);
        const float mean = sum(products);
        for (int64_t j = 0; j < whole(seen); j += WIDTH) store(p + j, load(p + j) * (load(d_probs + j) - mean));
    }
};

// Writes the outputs, and the logarithm of each softmax's sum (heads, tokens).
template <class T>
void attention(
    const Segment* segments, int64_t count, int64_t tokens, const Shape& shape, Heads<const T> q, Heads<const T> k,
    Heads<const T> v, Heads<T> out, float* log_z
) {
    const int64_t n = whole(shape.size), shared = shape.heads / shape.groups;
    struct Memory {
        Seen keys, values;
        Block block;
        std::vector<float> result;
    };
    each<Memory>(count * shape.groups, [&](int64_t task, Memory& memory) {
        auto& [keys, values, block, result] = memory;
        const Segment& s = segments[task / shape.groups];
        const int64_t group = task % shape.groups;
        keys.read_all(k, group, s, shape, true, true);
        values.read_all(v, group, s, shape, false, false);
        for (int64_t head = group * shared; head < (group + 1) * shared; head++)
            for (int64_t from = 0; from < s.length; from += QUERIES) {
                block.scores(q, head, s, from, shape, keys);
                for (int64_t i = 0; i < block.count; i++) {
                    const float most = largest_of(block.of(i), block.seen_by(i)), total = block.exponentiate(i, most);
                    for (int64_t j = 0; j < block.seen; j++) block.of(i)[j] /= total;
                    log_z[head * tokens + block.start + i] = most + std::log(total);
                }
                result.resize(block.count * n);
                const Matrix probs = {block.probs.data(), block.row};
                multiply(probs, {values.rows.data(), n}, block.count, block.seen, n, {result.data(), n});
                write(out, head, block.start, block.count, shape.size, result.data());
            }
    });
}

// Attention of one more token of each row to `seen` tokens, the last of which is itself, where `mask` is not 0.
// Row r of queries, keys and values begins at token r, and row r's token t at t * `key` or t * `value` after that.
template <class T>
void attention_step(
    int64_t rows, int64_t seen, const Shape& shape, Heads<const T> q, Heads<const T> k, Heads<const T> v,
    int64_t key, int64_t value, const uint8_t* mask, Heads<T> out
) {
    const int64_t n = whole(shape.size), shared = shape.heads / shape.groups;
    struct Memory {
        std::vector<float> queries, probs, result;
    };
    each<Memory>(rows, [&](int64_t row, Memory& memory) {
        memory.queries.resize(shared * n), memory.probs.resize(shared * whole(seen)), memory.result.resize(shared * n);
        float *const queries = memory.queries.data(), *const result = memory.result.data();
        const uint8_t* const see = mask ? mask + row * seen : nullptr;
        for (int64_t group = 0; group < shape.groups; group++) {
            const int64_t head = group * shared, m = whole(seen);
            for (int64_t h = 0; h < shared; h++) read(q, head + h, row, 1, shape.size, queries + h * n);
            const T *keys = k.data + row * k.token + group * k.head, *values = v.data + row * v.token + group * v.head;
            for (int64_t h = 0; h < shared; h++) {
                float* const p = &memory.probs[h * m];
                std::fill(p, p + m, -INFINITY);
                for (int64_t t = 0; t < seen; t++) {
                    if (see && !see[t]) continue;
                    Vector dots{};
                    for (int64_t e = 0; e < n; e += WIDTH)
                        dots += load(queries + h * n + e) * take(keys + t * key + e, shape.size - e);
                    p[t] = shape.scale * sum(dots);
                }
                const float most = largest_of(p, seen);
                Vector total{};
                for (int64_t t = 0; t < m; t += WIDTH) {
                    const Vector e = exp_of(load(p + t) - most);
                    store(p + t, e);
                    total += e;
                }
                const float z = 1 / sum(total);
                for (int64_t t = 0; t < m; t += WIDTH) store(p + t, z * load(p + t));
            }
            std::fill(result, result + shared * n, 0.0f);
            for (int64_t e = 0; e < n; e += WIDTH)
                for (int64_t h = 0; h < shared; h++) {
                    const float* const p = &memory.probs[h * m];
                    Vector sums{};
                    for (int64_t t = 0; t < seen; t++)
                        if (!see || see[t]) sums += p[t] * take(values + t * value + e, shape.size - e);
                    store(result + h * n + e, sums);
                }
            for (int64_t h = 0; h < shared; h++) write(out, head + h, row, 1, shape.size, result + h * n);
        }
    });
}

// Writes the gradients for q, k and v. A tree is segments of which all but the first see just the first one; it is
// segments trees[i] to trees[i + 1].
template <class T>
void attention_backward(
    const Segment* segments, const int64_t* trees, int64_t count, int64_t tokens, const Shape& shape, Heads<const T> q,
    Heads<const T> k, Heads<const T> v, const float* log_z, Heads<const T> d_out, Heads<T> dq, Heads<T> dk, Heads<T> dv
) {
    const int64_t n = whole(shape.size), shared = shape.heads / shape.groups;
    struct Memory {
        Seen keys, values;
        Block block;
        std::vector<float> d, d_probs, d_queries, d_keys, d_values, root_keys, root_values;
    };
    each<Memory>(count * shape.groups, [&](int64_t task, Memory& memory) {
        auto& [keys, values, block, d, d_probs, d_queries, d_keys, d_values, root_keys, root_values] = memory;
        const int64_t group = task % shape.groups, tree = task / shape.groups;
        const Segment& root = segments[trees[tree]];
        root_keys.assign(root.length * n, 0), root_values.assign(root.length * n, 0);
        for (int64_t i = trees[tree]; i < trees[tree + 1]; i++) {
            const Segment& s = segments[i];
            keys.read_all(k, group, s, shape, true, true);
            values.read_all(v, group, s, shape, false, true);
            d_keys.assign((s.count + s.length) * n, 0), d_values.assign((s.count + s.length) * n, 0);
            for (int64_t head = group * shared; head < (group + 1) * shared; head++)
                for (int64_t from = 0; from < s.length; from += QUERIES) {
                    block.scores(q, head, s, from, shape, keys);
                    const int64_t rows = block.count, seen = block.seen, width = block.row;
                    d.resize(rows * n), d_probs.resize(rows * width), d_queries.resize(rows * n);
                    read(d_out, head, block.start, rows, shape.size, d.data());
                    const Matrix probs = {block.probs.data(), width}, turned = {block.probs.data(), 1, width};
                    const Matrix columns = {values.columns.data(), width};
                    multiply({d.data(), n}, columns, rows, shape.size, whole(seen), {d_probs.data(), width});
                    for (int64_t i = 0; i < rows; i++) block.exponentiate(i, log_z[head * tokens + block.start + i]);
                    multiply(turned, {d.data(), n}, seen, rows, n, {d_values.data(), n, nullptr, true});
                    for (int64_t i = 0; i < rows; i++) block.to_gradient(i, &d_probs[i * width]);
                    multiply(turned, {block.queries.data(), n}, seen, rows, n, {d_keys.data(), n, nullptr, true});
                    multiply(probs, {keys.rows.data(), n}, rows, seen, n, {d_queries.data(), n});
                    for (float& x : d_queries) x *= shape.scale;
                    rotate(shape, block.start, block.count, d_queries.data(), true);
                    write(dq, head, block.start, block.count, shape.size, d_queries.data());
                }
            const bool is_root = i == trees[tree];
            const int64_t above = is_root ? s.length * n : s.count * n;
            for (int64_t j = 0; j < above; j++) root_keys[j] += d_keys[j], root_values[j] += d_values[j];
            if (is_root) continue;
            rotate(shape, s.start, s.length, d_keys.data() + above, true);
            write(dk, group, s.start, s.length, shape.size, d_keys.data() + above);
            write(dv, group, s.start, s.length, shape.size, d_values.data() + above);
        }
        rotate(shape, root.start, root.length, root_keys.data(), true);
        write(dk, group, root.start, root.length, shape.size, root_keys.data());
        write(dv, group, root.start, root.length, shape.size, root_values.data());
    });
}

// Distributions over a vocabulary.

// For each row the logarithm of the sum of exp(logit), and the mean of the logits; of older logits the logarithm too,
// and the mean of their differences to the logits under the older distribution. `mean` and `old` may be null.
template <class T>
void softmax_sums(
    int64_t rows, int64_t n, const T* logits, const T* old, float* total, float* mean, float* old_total,
    float* difference
) {
    each_chunk(rows, ROWS_OF_TASK, [=](int64_t r, int64_t end) {
        for (; r < end; r++) {
            const T *x = logits + r * n, *y = old + r * n;
            const float most = largest_of(x, n), most_old = old ? largest_of(y, n) : 0;
            Vector sums{}, products{}, old_sums{}, differences{};
            for (int64_t j = 0; j < n; j += WIDTH) {
                const Bits inside = first(n - j);
                const Vector v = take(x + j, n - j), e = inside ? exp_of(v - most) : Vector{};
                sums += e;
                products += e * v;
                if (!old) continue;
                const Vector u = take(y + j, n - j), f = inside ? exp_of(u - most_old) : Vector{};
                old_sums += f;
                differences += f * (u - v);
            }
            const float z = sum(sums);
            total[r] = most + std::log(z);
            if (mean) mean[r] = sum(products) / z;
            if (!old) continue;
            const float old_z = sum(old_sums);
            old_total[r] = most_old + std::log(old_z);
            difference[r] = sum(differences) / old_z;
        }
    });
}

// The gradient for each logit, of log pi(a), KL(pi_old || pi) and the entropy H. `of_action` is added at `action`.
template <class T>
void softmax_gradient(
    int64_t rows, int64_t n, const T* logits, const T* old, const int64_t* action, const float* of_action,
    const float* of_log_prob, const float* of_kl, const float* of_entropy, const float* log_z, const float* old_log_z,
    const float* entropy, T* d
) {
    each_chunk(rows, ROWS_OF_TASK, [=](int64_t r, int64_t end) {
        for (; r < end; r++) {
            const T *x = logits + r * n, *y = old + r * n;
            const float scale = of_kl[r] - of_log_prob[r], h = of_entropy ? of_entropy[r] : 0;
            const float shift = h ? entropy[r] : 0;
            for (int64_t j = 0; j < n; j += WIDTH) {
                const Vector log_p = take(x + j, n - j) - log_z[r];
                Vector g = exp_of(log_p) * (scale - h * (log_p + shift));
                if (old) g -= of_kl[r] * exp_of(take(y + j, n - j) - old_log_z[r]);
                put(d + r * n + j, g, n - j);
            }
            if (of_action[r] == 0) continue;
            const int64_t a = action[r];
            const float log_p = take(x + a, 1)[0] - log_z[r];
            Vector g = exp_of(Vector{} + log_p) * (scale - h * (log_p + shift)) + of_action[r];
            if (old) g -= of_kl[r] * exp_of(Vector{} + take(y + a, 1)[0] - old_log_z[r]);
            put(d + r * n + a, g, 1);
        }
    });
}

}  // namespace

extern "C" void use_threads(Parallel of_pytorch) { parallel = of_pytorch; }

// Each function by its name and its type of numbers.
#define EXPORT(name)                           \
    auto* name##_float32 = name<float>;  \
    auto* name##_bfloat16 = name<Half>;

extern "C" {
EXPORT(add_to)
EXPORT(transpose)
EXPORT(swiglu)
EXPORT(swiglu_backward)
EXPORT(gelu)
EXPORT(gelu_backward)
EXPORT(rms_norm)
EXPORT(rms_norm_backward)
EXPORT(attention)
EXPORT(attention_backward)
EXPORT(attention_step)
EXPORT(softmax_sums)
EXPORT(softmax_gradient)
}
