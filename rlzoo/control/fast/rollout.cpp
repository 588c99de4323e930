// Steps of the environments of classic control, with an MLP that acts in them, as one call.
//
// The environments compute what classic.py does, operation by operation: their states are equal bit for bit. Its
// docstrings have the equations. The actor is that of acting.py up to rounding.

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "vectors.h"

namespace {

double wrap(double angle) { return angle - 2 * M_PI * std::rint(angle / (2 * M_PI)); }

struct Random {  // a NumPy bit generator
    double (*next)(void*);
    void* state;

    double uniform(double low, double high) { return low + (high - low) * next(state); }
};

// An environment: `initial` draws variable k of a first state, `step` advances a state and returns whether the episode
// terminates, `observe` writes its observation. `setting` is the keyword argument that changes its dynamics.

struct CartPole {
    static constexpr int state_size = 4, obs_size = 4;
    using Action = int64_t;

    static double initial(int, Random& random) { return random.uniform(-0.05, 0.05); }

    static bool step(double* s, const Action* action, double sutton_barto_reward, double& reward) {
        const double total_mass = 1.0 + 0.1, half_length = 0.5, timestep = 0.02;
        const double pole_moment = 0.1 * 0.5, mass_ratio = 0.1 / 1.1, moment_ratio = 0.1 * 0.5 / 1.1;
        double x = s[0], x_dot = s[1], theta = s[2], theta_dot = s[3];
        const double sin = std::sin(theta), cos = std::cos(theta), force = *action ? 10.0 : -10.0;
        const double push = (force + pole_moment * theta_dot * theta_dot * sin) / total_mass;
        const double theta_acc = (9.8 * sin - push * cos) / (half_length * (4.0 / 3 - mass_ratio * cos * cos));
        const double x_acc = push - moment_ratio * theta_acc * cos;
        x += timestep * x_dot;
        theta += timestep * theta_dot;
        x_dot += timestep * x_acc;
        theta_dot += timestep * theta_acc;
        s[0] = x, s[1] = x_dot, s[2] = theta, s[3] = theta_dot;
        const bool terminated = std::abs(x) > 2.4 || std::abs(theta) > 12 * (M_PI / 180);
        reward = sutton_barto_reward ? (terminated ? -1.0 : -0.0) : 1.0;
        return terminated;
    }

    static void observe(const double* s, float* obs) {
        for (int k = 0; k < 4; k++) obs[k] = float(s[k]);
    }
};

struct Acrobot {
    static constexpr int state_size = 4, obs_size = 6;
    using Action = int64_t;

    static double initial(int, Random& random) { return float(random.uniform(-0.1, 0.1)); }

    struct Pair {  // of both links
        double first, second;

        Pair operator+(Pair o) const { return {first + o.first, second + o.second}; }
    };
    friend Pair operator*(double x, Pair p) { return {x * p.first, x * p.second}; }

    static Pair accelerations(Pair angle, Pair velocity, double torque) {
        const double bend = angle.second - angle.first, sin = std::sin(bend), cos = std::cos(bend);
        double force_1 = torque - 3 * 9.8 * std::sin(angle.first), force_2 = -torque - 9.8 * std::sin(angle.second);
        force_1 += velocity.second * velocity.second * sin;
        force_2 -= velocity.first * velocity.first * sin;
        const double determinant = 9.0 / 2 * 5 / 2 - cos * cos;
        return {(5.0 / 2 * force_1 - cos * force_2) / determinant, (9.0 / 2 * force_2 - cos * force_1) / determinant};
    }

    static bool step(double* s, const Action* action, double, double& reward) {
        const double timestep = 0.2, half = 0.2 / 2, sixth = 0.2 / 6, torque = -2.0 * (*action - 1);
        Pair angle{s[0], s[1] + s[0]}, velocity{s[2], s[3] + s[2]};
        const Pair v1 = velocity, a1 = accelerations(angle, velocity, torque);
        const Pair v2 = velocity + half * a1, a2 = accelerations(angle + half * v1, v2, torque);
        const Pair v3 = velocity + half * a2, a3 = accelerations(angle + half * v2, v3, torque);
        const Pair v4 = velocity + timestep * a3, a4 = accelerations(angle + timestep * v3, v4, torque);
        angle = angle + sixth * (v1 + 2.0 * (v2 + v3) + v4);
        velocity = velocity + sixth * (a1 + 2.0 * (a2 + a3) + a4);
        const bool terminated = std::cos(angle.first) + std::cos(angle.second) < -1.0;
        s[0] = wrap(angle.first), s[1] = wrap(angle.second - angle.first);
        s[2] = clip(velocity.first, -4 * M_PI, 4 * M_PI);
        s[3] = clip(velocity.second - velocity.first, -9 * M_PI, 9 * M_PI);
        reward = terminated - 1;
        return terminated;
    }

    static void observe(const double* s, float* obs) {
        for (int k = 0; k < 2; k++) {
            obs[2 * k] = float(std::cos(s[k]));
            obs[2 * k + 1] = float(std::sin(s[k]));
            obs[4 + k] = float(s[2 + k]);
        }
    }
};

struct Car {
    static constexpr int state_size = 2, obs_size = 2;

    static double initial(int k, Random& random) { return k == 0 ? random.uniform(-0.6, -0.4) : 0.0; }

    static bool drive(double* s, double push, double goal, double goal_velocity) {
        double x = s[0], v = s[1];
        v = clip(v + (push - 0.0025 * std::cos(3.0 * x)), -0.07, 0.07);
        x += v;
        if (x <= -1.2) v = 0.0;
        s[0] = x = clip(x, -1.2, 0.6), s[1] = v;
        return x >= goal && v >= goal_velocity;
    }

    static void observe(const double* s, float* obs) { obs[0] = float(s[0]), obs[1] = float(s[1]); }
};

struct MountainCar : Car {
    using Action = int64_t;

    static bool step(double* s, const Action* action, double goal_velocity, double& reward) {
        reward = -1.0;
        return drive(s, *action == 0 ? -0.001 : *action == 1 ? 0.0 : 0.001, 0.5, goal_velocity);
    }
};

struct MountainCarContinuous : Car {
    using Action = float;

    static bool step(double* s, const Action* action, double goal_velocity, double& reward) {
        const double u = clip(double(*action), -1.0, 1.0);
        const bool terminated = drive(s, 0.0015 * u, 0.45, goal_velocity);
        reward = 100.0 * terminated - 0.1 * u * u;
        return terminated;
    }
};

struct Pendulum {
    static constexpr int state_size = 2, obs_size = 3;
    using Action = float;

    static double initial(int k, Random& random) { return random.uniform(-1.0, 1.0) * (k == 0 ? M_PI : 1.0); }

    static bool step(double* s, const Action* action, double g, double& reward) {
        const double timestep = 0.05, u = clip(double(*action), -2.0, 2.0), angle = wrap(s[0]);
        const double speed = s[1] + (3 * g / 2 * std::sin(s[0]) + 3.0 * u) * timestep;
        reward = -(angle * angle + 0.1 * s[1] * s[1] + 0.001 * u * u);
        s[1] = clip(speed, -8.0, 8.0);
        s[0] += s[1] * timestep;
        return false;
    }

    static void observe(const double* s, float* obs) {
        obs[0] = float(std::cos(s[0])), obs[1] = float(std::sin(s[0])), obs[2] = float(s[1]);
    }
};

}  // namespace

extern "C" {

struct Layer {
    const float *weight, *bias;  // (inputs, outputs), (outputs,)
    int64_t inputs, outputs;     // padded by zeros to an even number, and to a multiple of 16
    Activation activation;
};

struct Policy {
    const Layer* layers;
    int64_t num_layers, outputs;        // outputs without padding
    const float *mean, *scale;          // of observations; null if they are not normalised
    double clip;                        // of normalised observations
    const float *centre, *range, *std;  // a Box action is centre + range * output + std * noise; null for a category
};

struct Rollout {
    int64_t steps, num_envs, limit;
    double setting;
    Random random;
    double* state;                   // (S, N), like the next two the environment's own
    int64_t* elapsed;                // (N,)
    bool* ended;                     // (N,), copies that are forced now
    const float* noise;              // (T, N, Z)
    float* obs;                      // (T + 1, N, D), the first given
    void* action;                    // (T, N)
    float* reward;                   // (T, N)
    bool *terminated, *truncated, *forced;  // (T, N)
};

}  // extern "C"

namespace {

class Actor {
    const Policy& policy;
    std::vector<float> x, y;

    // Writes B vectors of outputs from the j-th on. Sums are many, since an addition waits for the last of its own.
    template <int B>
    void units(const Layer& layer, int64_t j) {
        Vector even[B], odd[B] = {};
        for (int b = 0; b < B; b++) even[b] = load(layer.bias + j + b * WIDTH);
        for (int64_t i = 0; i < layer.inputs; i += 2) {
            const float *row = layer.weight + i * layer.outputs + j, *next = row + layer.outputs;
            for (int b = 0; b < B; b++) even[b] += x[i] * load(row + b * WIDTH);
            for (int b = 0; b < B; b++) odd[b] += x[i + 1] * load(next + b * WIDTH);
        }
        for (int b = 0; b < B; b++) store(&y[j + b * WIDTH], activate(layer.activation, even[b] + odd[b]));
    }

  public:
    explicit Actor(const Policy& p) : policy(p) {
        for (int64_t k = 0; k < p.num_layers; k++) {
            const size_t widest = std::max(p.layers[k].inputs, p.layers[k].outputs);
            if (x.size() < widest) x.resize(widest), y.resize(widest);
        }
    }

    const float* forward(const float* obs, int size) {
        const float bound = policy.clip;
        std::fill(x.begin(), x.end(), 0.0f);
        for (int i = 0; i < size; i++) {
            x[i] = obs[i];
            if (policy.mean) x[i] = clip((x[i] - policy.mean[i]) * policy.scale[i], -bound, bound);
        }
        for (int64_t k = 0; k < policy.num_layers; k++) {
            const Layer& layer = policy.layers[k];
            int64_t j = 0;
            for (; j + 4 * WIDTH <= layer.outputs; j += 4 * WIDTH) units<4>(layer, j);
            for (; j < layer.outputs; j += WIDTH) units<1>(layer, j);
            std::swap(x, y);
        }
        return x.data();
    }

    void act(const float* outputs, const float* noise, int64_t* action) const {
        int64_t best = 0;
        for (int64_t j = 1; j < policy.outputs; j++)
            if (outputs[j] + noise[j] > outputs[best] + noise[best]) best = j;
        *action = best;
    }

    void act(const float* outputs, const float* noise, float* action) const {
        *action = *policy.centre + *policy.range * *outputs + *policy.std * *noise;
    }
};

template <class Env>
void run(const Policy& policy, Rollout r) {
    constexpr int S = Env::state_size, D = Env::obs_size;
    const int64_t n = r.num_envs;
    Actor actor(policy);
    auto* action = static_cast<typename Env::Action*>(r.action);
    std::vector<int64_t> fresh;
    double s[S];
    for (int64_t t = 0; t < r.steps; t++, r.obs += n * D, r.noise += n * policy.outputs, action += n) {
        for (int64_t i = 0; i < n; i++) {
            const int64_t at = t * n + i;
            actor.act(actor.forward(r.obs + i * D, D), r.noise + i * policy.outputs, action + i);
            if (r.ended[i]) {
                fresh.push_back(i);
                continue;
            }
            for (int k = 0; k < S; k++) s[k] = r.state[k * n + i];
            double reward;
            r.terminated[at] = Env::step(s, action + i, r.setting, reward);
            for (int k = 0; k < S; k++) r.state[k * n + i] = s[k];
            r.reward[at] = float(reward);
            r.truncated[at] = ++r.elapsed[i] >= r.limit;
        }
        for (int k = 0; k < S; k++)
            for (const int64_t i : fresh) r.state[k * n + i] = Env::initial(k, r.random);
        for (const int64_t i : fresh) {
            const int64_t at = t * n + i;
            r.reward[at] = 0, r.elapsed[i] = 0, r.terminated[at] = r.truncated[at] = false;
        }
        fresh.clear();
        for (int64_t i = 0; i < n; i++) {
            const int64_t at = t * n + i;
            r.forced[at] = r.ended[i] = r.terminated[at] || r.truncated[at];
            for (int k = 0; k < S; k++) s[k] = r.state[k * n + i];
            Env::observe(s, r.obs + (n + i) * D);
        }
    }
}

}  // namespace

extern "C" {
void rollout_CartPole(const Policy& policy, const Rollout& r) { run<CartPole>(policy, r); }
void rollout_Acrobot(const Policy& policy, const Rollout& r) { run<Acrobot>(policy, r); }
void rollout_MountainCar(const Policy& policy, const Rollout& r) { run<MountainCar>(policy, r); }
void rollout_MountainCarContinuous(const Policy& policy, const Rollout& r) { run<MountainCarContinuous>(policy, r); }
void rollout_Pendulum(const Policy& policy, const Rollout& r) { run<Pendulum>(policy, r); }
}
