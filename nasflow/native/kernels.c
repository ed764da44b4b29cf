/* The inner loops of a fused step, for float32 on one core.
 *
 * The bits of a result depend on its own inputs alone, not on their place in memory: vectors that the data do not fill
 * are padded with zeros and go through the same instructions, so there is no other code for the remainder. Functions of
 * one value are within a few units in the last place of the exact result; the polynomials are our own least-squares fits.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif
#define LANES ((long)(BYTES / sizeof(float)))
#define BLOCK 8      /* lines of a product at once */
#define DEEPEST 512  /* the longest sum of a product; native/structs.py has the same */

typedef float vec __attribute__((vector_size(BYTES)));
typedef int32_t mask __attribute__((vector_size(BYTES)));

/* Load `count` numbers, at most a vector of them; the rest of the vector is zero. */
static inline vec load(const float *from, long count) {
    vec value = {0};
    if (count >= LANES) {
        memcpy(&value, from, BYTES);
        return value;
    }
#if defined(__AVX512F__)
    return (vec)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), from);
#else
    memcpy(&value, from, count * sizeof(float));
    return value;
#endif
}

static inline void store(float *to, vec value, long count) {
    if (count >= LANES) {
        memcpy(to, &value, BYTES);
        return;
    }
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(to, (__mmask16)((1u << count) - 1), (__m512)value);
#else
    memcpy(to, &value, count * sizeof(float));
#endif
}

static inline vec choose(mask condition, vec yes, vec no) {
    return (vec)((condition & (mask)yes) | (~condition & (mask)no));
}

static inline vec all(float value) {
    return value - (vec){0};
}

static inline vec magnitude(vec x) {
    return (vec)((mask)x & 0x7fffffff);
}

static inline vec with_sign_of(vec size, vec x) {
    return (vec)((mask)size | ((mask)x & (int32_t)0x80000000));
}

static inline vec roots(vec x) {
    vec root;
    for (int i = 0; i < LANES; i++) root[i] = sqrtf(x[i]);
    return root;
}

/* 2^n * 2^r by the powers' bits; 0 where the result would not be normal, infinite above 88.37. */
static inline vec exponential(vec x) {
    const vec shift = all(12582912.0f); /* 1.5 * 2^23: adding it rounds to a whole number, in the lowest bits */
    vec clamped = choose(x > 88.3762f, all(88.3762f), x);
    vec shifted = clamped * 1.44269504f + shift;
    vec n = shifted - shift;
    vec r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
    vec p = ((((0.00139506f * r + 0.00836897f) * r + 0.04166620f) * r + 0.16666518f) * r + 0.5f) * r * r + r + 1.0f;
    vec power = (vec)((((mask)shifted - (mask)shift) + 127) << 23);
    vec result = choose(x < -87.3365f, all(0.0f), p * power);
    return choose(x > 88.3762f, all(INFINITY), result);
}

static inline vec relu(vec x) {
    return choose(x < 0.0f, all(0.0f), x); /* NaN stays NaN */
}

static inline vec hyperbolic_tangent(vec x) {
    vec size = magnitude(x), square = x * x;
    vec p = (((-0.00570498f * square + 0.02063908f) * square - 0.05373971f) * square + 0.13331442f) * square - 0.33333282f;
    vec large = 1.0f - 2.0f / (exponential(2.0f * size) + 1.0f);
    return choose(size < 0.625f, x + x * square * p, with_sign_of(large, x));
}

static inline vec sigmoid(vec x) {
    return 1.0f / (1.0f + exponential(-x));
}

/* The normal distribution's cumulative probability of x; `bell` is exp(-x^2 / 2). */
static inline vec cumulative(vec x, vec bell) {
    vec s = 1.0f / (1.0f + 0.5f * 0.70710678f * magnitude(x)); /* bell * p(s): Abramowitz and Stegun 7.1.26, refitted */
    vec p = ((((((0.04148999f * s - 0.12353526f) * s - 0.09820584f) * s + 0.59040533f) * s - 0.08503073f) * s
        + 0.41977327f) * s + 0.25249528f) * s + 0.00260798f;
    vec tail = 0.5f * bell * p;
    return choose(x > 0.0f, 1.0f - tail, tail);
}

static inline vec gelu(vec x) {
    return x * cumulative(x, exponential(-0.5f * x * x));
}

static inline vec gelu_gradient(vec x) {
    vec bell = exponential(-0.5f * x * x);
    return cumulative(x, bell) + x * bell * 0.39894228f;
}

static inline vec silu_gradient(vec x) {
    vec s = sigmoid(x);
    return s * (1.0f + x * (1.0f - s));
}

/* The kinds of operations; native/program.py has the same. */
enum kind { RELU = 0, GELU, TANH, SIGMOID, SILU, RELU_BACK, GELU_BACK, TANH_BACK, SIGMOID_BACK, SILU_BACK, PRODUCTS, SUMS };

/* An operation.
 * Activations: out[i] = f(x[i]) for i < sizes[0]; backward: out[i] = x[i] * f', with y the function's input, or its
 * output where that is enough.
 * PRODUCTS: for each of sizes[0] rows, out[m, n] = x y, plus bias[n] if there is one, or plus out[m, n] if `adds`.
 * SUMS: for each of sizes[0] rows, out[n] = the sum of x[m, n] over m. */
struct operation {
    int64_t kind;
    const float *x, *y, *bias;
    float *out;
    int64_t sizes[4];      /* rows, m, n, k */
    int64_t strides[4];    /* from row to row: of x, y, bias, out */
    int64_t leading[3];    /* of x, y, out: from line to line */
    int64_t transposed[2]; /* whether x, y are transposed */
    int64_t adds;
};

/* Lines of a product, `lines` at once: out[i, n] = the sum of x[i, k] y[k, n] over k, for the columns of one vector. */
static inline __attribute__((always_inline)) void lines_of_product(long lines, const float *x, long x_line, long x_step,
    const vec *y, long k, vec start, int adds, float *out, long out_line, long columns) {
    vec sum[BLOCK];
    for (long i = 0; i < lines; i++) sum[i] = adds ? load(out + i * out_line, columns) : start;
    for (long j = 0; j < k; j++)
        for (long i = 0; i < lines; i++) sum[i] += x[i * x_line + j * x_step] * y[j];
    for (long i = 0; i < lines; i++) store(out + i * out_line, sum[i], columns);
}

/* One row of PRODUCTS, in strips as wide as a vector: the part of y that a strip reads is first copied line by line.
 * For the sizes of small models that is as fast as a BLAS, or faster, and takes no time to start. */
static void product(const struct operation *o, const float *x, const float *y, const float *bias, float *out) {
    const long m = o->sizes[1], n = o->sizes[2], k = o->sizes[3], y_line = o->leading[1], out_line = o->leading[2];
    const long x_line = o->transposed[0] ? 1 : o->leading[0], x_step = o->transposed[0] ? o->leading[0] : 1;
    vec strip[DEEPEST];
    for (long c = 0; c < n; c += LANES) {
        const long columns = n - c < LANES ? n - c : LANES;
        if (o->transposed[1]) {
            if (columns < LANES) memset(strip, 0, k * sizeof(vec));
            for (long i = 0; i < columns; i++)
                for (long j = 0; j < k; j++) ((float *)strip)[j * LANES + i] = y[(c + i) * y_line + j];
        } else {
            for (long j = 0; j < k; j++) strip[j] = load(y + j * y_line + c, columns);
        }
        const vec start = bias ? load(bias + c, columns) : (vec){0};
        long i = 0;
        for (; i + BLOCK <= m; i += BLOCK)
            lines_of_product(BLOCK, x + i * x_line, x_line, x_step, strip, k, start, o->adds,
                out + i * out_line + c, out_line, columns);
        for (; i < m; i++)
            lines_of_product(1, x + i * x_line, x_line, x_step, strip, k, start, o->adds,
                out + i * out_line + c, out_line, columns);
    }
}

static void products(const struct operation *o) {
    for (long row = 0; row < o->sizes[0]; row++)
        product(o, o->x + row * o->strides[0], o->y + row * o->strides[1],
            o->bias ? o->bias + row * o->strides[2] : NULL, o->out + row * o->strides[3]);
}

static void sums(const struct operation *o) {
    const long m = o->sizes[1], n = o->sizes[2], line = o->leading[0];
    for (long row = 0; row < o->sizes[0]; row++) {
        const float *x = o->x + row * o->strides[0];
        float *out = o->out + row * o->strides[3];
        for (long j = 0; j < n; j += LANES) {
            vec even = {0}, odd = {0};
            for (long i = 0; i + 1 < m; i += 2) {
                even += load(x + i * line + j, n - j);
                odd += load(x + (i + 1) * line + j, n - j);
            }
            if (m % 2) even += load(x + (m - 1) * line + j, n - j);
            store(out + j, even + odd, n - j);
        }
    }
}

#define EACH(RESULT)                                                       \
    for (long i = 0; i < count; i += LANES) {                              \
        vec x = load(from + i, count - i);                                 \
        vec y = value ? load(value + i, count - i) : (vec){0};             \
        (void)y;                                                           \
        store(out + i, RESULT, count - i);                                 \
    }                                                                      \
    break

static inline void pointwise(int64_t kind, const float *from, const float *value, float *out, long count) {
    switch (kind) {
    case RELU: EACH(relu(x));
    case GELU: EACH(gelu(x));
    case TANH: EACH(hyperbolic_tangent(x));
    case SIGMOID: EACH(sigmoid(x));
    case SILU: EACH(x * sigmoid(x));
    case RELU_BACK: EACH(choose(y <= 0.0f, all(0.0f), x));
    case GELU_BACK: EACH(x * gelu_gradient(y));
    case TANH_BACK: EACH(x * (1.0f - y * y));
    case SIGMOID_BACK: EACH(x * ((1.0f - y) * y));
    case SILU_BACK: EACH(x * silu_gradient(y));
    }
}

void nasflow_run(const struct operation *operations, int64_t number) {
    for (const struct operation *o = operations; o < operations + number; o++) {
        if (o->kind == PRODUCTS) products(o);
        else if (o->kind == SUMS) sums(o);
        else pointwise(o->kind, o->x, o->y, o->out, o->sizes[0]);
    }
}

/* An activation, or its backward, of matrices [lines, channels]. Lines may be parts of longer ones. */
void nasflow_pointwise(int64_t kind, const float *x, int64_t x_line, const float *y, int64_t y_line, float *out,
    int64_t out_line, int64_t lines, int64_t channels) {
    if (x_line == channels && out_line == channels && (!y || y_line == channels)) {
        pointwise(kind, x, y, out, lines * channels);
        return;
    }
    for (long i = 0; i < lines; i++)
        pointwise(kind, x + i * x_line, y ? y + i * y_line : NULL, out + i * out_line, channels);
}

/* Copy up to LANES lines [classes] class by class: lane i of each vector of `room` is line i's. */
static inline void by_class(const float *from, float *room, long lines, long classes) {
    if (lines < LANES) memset(room, 0, classes * BYTES);
    for (long i = 0; i < lines; i++)
        for (long c = 0; c < classes; c++) room[c * LANES + i] = from[i * classes + c];
}

static inline void by_line(const float *room, float *to, long lines, long classes) {
    for (long i = 0; i < lines; i++)
        for (long c = 0; c < classes; c++) to[i * classes + c] = room[c * LANES + i];
}

static inline vec largest_class(const float *room, long classes) {
    vec largest = load(room, LANES);
    for (long c = 1; c < classes; c++) {
        vec x = load(room + c * LANES, LANES);
        largest = choose(x > largest, x, largest); /* a NaN makes the sum of powers NaN */
    }
    return largest;
}

/* Log-softmax of lines x [lines, classes]. `room` holds 2 * classes * lanes numbers, here and below. */
void nasflow_log_softmax(const float *x, float *out, float *room, int64_t lines, int64_t classes) {
    for (long b = 0; b < lines; b += LANES) {
        const long here = lines - b < LANES ? lines - b : LANES;
        by_class(x + b * classes, room, here, classes);
        vec largest = largest_class(room, classes), sum = {0}, logs = {0};
        for (long c = 0; c < classes; c++) sum += exponential(load(room + c * LANES, LANES) - largest);
        for (long i = 0; i < here; i++) logs[i] = logf(sum[i]);
        for (long c = 0; c < classes; c++)
            store(room + c * LANES, load(room + c * LANES, LANES) - largest - logs, LANES);
        by_line(room, out + b * classes, here, classes);
    }
}

/* The gradient by log-softmax's input, from that by its output y. */
void nasflow_log_softmax_backward(const float *gradient, const float *y, float *out, float *room, int64_t lines,
    int64_t classes) {
    float *const given = room + classes * LANES;
    for (long b = 0; b < lines; b += LANES) {
        const long here = lines - b < LANES ? lines - b : LANES;
        by_class(y + b * classes, room, here, classes);
        by_class(gradient + b * classes, given, here, classes);
        vec sum = {0};
        for (long c = 0; c < classes; c++) sum += load(given + c * LANES, LANES);
        for (long c = 0; c < classes; c++)
            store(room + c * LANES,
                load(given + c * LANES, LANES) - exponential(load(room + c * LANES, LANES)) * sum, LANES);
        by_line(room, out + b * classes, here, classes);
    }
}

/* Cross-entropies of rows of logits [rows, samples, classes], means over the samples, and their gradients unless
 * `gradients` is NULL. It takes as many samples at once as a vector has lanes, after copying them class by class to
 * `room`, which holds classes * lanes numbers. Each row has its own smoothing. Returns 1, with nothing done, if a target
 * is not a class. */
int nasflow_cross_entropy(const float *logits, const int64_t *target, const float *smoothing, float *losses,
    float *gradients, float *room, int64_t rows, int64_t samples, int64_t classes) {
    for (long b = 0; b < samples; b++)
        if (target[b] < 0 || target[b] >= classes) return 1;
    const float share = 1.0f / samples;
    for (long row = 0; row < rows; row++) {
        const float smooth = smoothing[row], even = smooth / classes;
        double total = 0.0;
        for (long b = 0; b < samples; b += LANES) {
            const long here = samples - b < LANES ? samples - b : LANES;
            const float *from = logits + (row * samples + b) * classes;
            by_class(from, room, here, classes);
            vec largest = largest_class(room, classes), sum = {0}, logits_of_all = {0};
            for (long i = 0; i < here; i++) total -= (1.0f - smooth) * (from[i * classes + target[b + i]] - largest[i]);
            if (smooth != 0.0f) { /* without smoothing, classes masked with -inf must not count */
                for (long c = 0; c < classes; c++) logits_of_all += load(room + c * LANES, LANES) - largest;
                for (long i = 0; i < here; i++) total -= even * logits_of_all[i];
            }
            for (long c = 0; c < classes; c++) {
                vec power = exponential(load(room + c * LANES, LANES) - largest);
                sum += power;
                store(room + c * LANES, power, LANES);
            }
            for (long i = 0; i < here; i++) total += logf(sum[i]);
            if (!gradients) continue;
            vec scale = share / sum;
            for (long c = 0; c < classes; c++) store(room + c * LANES, load(room + c * LANES, LANES) * scale - even * share, LANES);
            float *to = gradients + (row * samples + b) * classes;
            for (long i = 0; i < here; i++) {
                for (long c = 0; c < classes; c++) to[i * classes + c] = room[c * LANES + i];
                to[i * classes + target[b + i]] -= share * (1.0f - smooth);
            }
        }
        losses[row] = total / samples;
    }
    return 0;
}

/* The hyper-parameters of a row in a step of Adam. */
struct adam {
    double lr, beta1, beta2, eps, weight_decay, steps; /* steps: former ones, to which `age` is added */
};

/* One step of Adam, or of AdamW if `decoupled`, of matrices [rows, size]. */
void nasflow_adam(float *parameters, const float *gradients, float *means, float *squares, const struct adam *adams,
    int64_t rows, int64_t size, double age, int decoupled) {
    for (long row = 0; row < rows; row++) {
        const struct adam *a = adams + row;
        const double steps = a->steps + age;
        const double correction = sqrt(1.0 - pow(a->beta2, steps));
        const float rate = a->lr * correction / (1.0 - pow(a->beta1, steps)), eps = a->eps * correction;
        const float kept = decoupled ? 1.0 - a->lr * a->weight_decay : 1.0;
        const float decay = decoupled ? 0.0 : a->weight_decay;
        const float beta1 = a->beta1, share1 = 1.0 - a->beta1, beta2 = a->beta2, share2 = 1.0 - a->beta2;
        for (long i = 0; i < size; i += LANES) {
            const long at = row * size + i, left = size - i;
            vec p = load(parameters + at, left) * kept;
            vec g = load(gradients + at, left);
            if (decay != 0.0f) g += decay * p;
            vec mean = beta1 * load(means + at, left) + share1 * g;
            vec square = beta2 * load(squares + at, left) + share2 * g * g;
            store(means + at, mean, left);
            store(squares + at, square, left);
            store(parameters + at, p - rate * mean / (roots(square) + eps), left);
        }
    }
}

/* What is compared when the library is loaded: a version, raised when the fields of a struct change, and sizes;
 * native/structs.py has the same. */
const int64_t nasflow_layout[] = {1, sizeof(struct operation), sizeof(struct adam), DEEPEST};

#define PANEL 512   /* channels at once */
#define PER_BLOCK 32 /* lines that are summed in single precision; few, to keep the sum exact */

static inline void add_to(double *totals, vec sums) {
    for (int i = 0; i < LANES; i++) totals[i] += sums[i];
}

/* Means, and scales (one over the standard deviation), of the channels of [lines, channels]; running statistics are
 * updated unless they are NULL. */
void nasflow_batch_statistics(const float *x, int64_t x_line, float *running_mean, float *running_variance, float *mean,
    float *scale, int64_t lines, int64_t channels, double momentum, double eps) {
    for (long c = 0; c < channels; c += PANEL) {
        const long panel = channels - c < PANEL ? channels - c : PANEL;
        double sums[PANEL] = {0}, squares[PANEL] = {0};
        for (long start = 0; start < lines; start += PER_BLOCK) {
            const long stop = start + PER_BLOCK < lines ? start + PER_BLOCK : lines;
            for (long j = 0; j < panel; j += LANES) {
                vec sum = {0};
                for (long i = start; i < stop; i++) sum += load(x + i * x_line + c + j, panel - j);
                add_to(sums + j, sum);
            }
        }
        for (long j = 0; j < panel; j++) mean[c + j] = sums[j] / lines;
        for (long start = 0; start < lines; start += PER_BLOCK) {
            const long stop = start + PER_BLOCK < lines ? start + PER_BLOCK : lines;
            for (long j = 0; j < panel; j += LANES) {
                const vec center = load(mean + c + j, panel - j);
                vec sum = {0};
                for (long i = start; i < stop; i++) {
                    vec centered = load(x + i * x_line + c + j, panel - j) - center;
                    sum += centered * centered;
                }
                add_to(squares + j, sum);
            }
        }
        for (long j = 0; j < panel; j++) {
            scale[c + j] = 1.0 / sqrt(squares[j] / lines + eps);
            if (!running_mean) continue;
            const double variance = squares[j] / (lines - 1);
            running_mean[c + j] = (1.0 - momentum) * running_mean[c + j] + momentum * mean[c + j];
            running_variance[c + j] = (1.0 - momentum) * running_variance[c + j] + momentum * variance;
        }
    }
}

/* Batch norm with given statistics, then an activation unless `kind` is negative. */
void nasflow_normalize(int64_t kind, const float *x, int64_t x_line, const float *mean, const float *scale,
    const float *weight, const float *bias, float *out, int64_t out_line, int64_t lines, int64_t channels) {
    for (long c = 0; c < channels; c += PANEL) {
        const long panel = channels - c < PANEL ? channels - c : PANEL;
        float factors[PANEL];
        for (long j = 0; j < panel; j++) factors[j] = scale[c + j] * weight[c + j];
        for (long i = 0; i < lines; i++) {
            const float *from = x + i * x_line + c;
            float *to = out + i * out_line + c;
            for (long j = 0; j < panel; j += LANES) {
                const long left = panel - j;
                vec centered = load(from + j, left) - load(mean + c + j, left);
                vec y = centered * load(factors + j, left) + load(bias + c + j, left);
                store(to + j, kind == RELU ? relu(y) : y, left);
            }
            if (kind > RELU) pointwise(kind, to, NULL, to, panel);
        }
    }
}

/* The backward of batch norm: the gradients of x, weight and bias from that of y. */
void nasflow_batch_norm_backward(const float *grad, int64_t grad_line, const float *x, int64_t x_line,
    const float *weight, const float *mean, const float *scale, float *x_grad, int64_t x_grad_line, float *weight_grad,
    float *bias_grad, int64_t lines, int64_t channels) {
    for (long c = 0; c < channels; c += PANEL) {
        const long panel = channels - c < PANEL ? channels - c : PANEL;
        double sums[PANEL] = {0}, products[PANEL] = {0};
        for (long start = 0; start < lines; start += PER_BLOCK) {
            const long stop = start + PER_BLOCK < lines ? start + PER_BLOCK : lines;
            for (long j = 0; j < panel; j += LANES) {
                const vec center = load(mean + c + j, panel - j);
                vec sum = {0}, product = {0};
                for (long i = start; i < stop; i++) {
                    vec g = load(grad + i * grad_line + c + j, panel - j);
                    sum += g;
                    product += g * (load(x + i * x_line + c + j, panel - j) - center);
                }
                add_to(sums + j, sum);
                add_to(products + j, product);
            }
        }
        float means[PANEL], slopes[PANEL], factors[PANEL];
        for (long j = 0; j < panel; j++) {
            bias_grad[c + j] = sums[j];
            weight_grad[c + j] = products[j] * scale[c + j];
            means[j] = sums[j] / lines;
            slopes[j] = products[j] * scale[c + j] * scale[c + j] / lines;
            factors[j] = scale[c + j] * weight[c + j];
        }
        for (long start = 0; start < lines; start += PER_BLOCK) {
            const long stop = start + PER_BLOCK < lines ? start + PER_BLOCK : lines;
            for (long j = 0; j < panel; j += LANES) {
                const long left = panel - j;
                const vec center = load(mean + c + j, left), even = load(means + j, left);
                const vec slope = load(slopes + j, left), factor = load(factors + j, left);
                for (long i = start; i < stop; i++) {
                    vec g = load(grad + i * grad_line + c + j, left);
                    vec centered = load(x + i * x_line + c + j, left) - center;
                    store(x_grad + i * x_grad_line + c + j, (g - even - centered * slope) * factor, left);
                }
            }
        }
    }
}
