/* Statistics of a tensor in one pass, for torchtap.stats.kernels.native.
 *
 * Nothing here knows of torch: every call takes plain integers (pointer, numel, dtype code) and
 * merges what it measures into a row of 16 doubles (see the enum below). One binary serves every
 * Python from 3.11 and every torch.
 *
 * How it is exact. Elements are widened to double before anything is summed, so a sum's relative
 * error is a few 1e-16 times the square root of the number of elements, for any float32. A block
 * of elements that fits in the cache is summed without asking whether it is finite; its sum of
 * squares tells afterwards, because the square of a float32 never overflows a double. Only a block
 * with something to look into is read again while it is still in the cache:
 *   - its sum of squares is not finite: `careful` (masks and counts non-finite elements; also
 *     float64 so large that squares overflow);
 *   - the variance would cancel (mean^2 more than 1e4 variances): `spread` (deviations from the
 *     block's mean);
 *   - its smallest magnitude is below the smallest normal number: `tiny` (zeros, subnormals).
 * Blocks are merged with Chan's formula (Chan, Golub & LeVeque 1979, eq. 2.1).
 *
 * How it is fast. The file includes itself: once for each instruction set (TARGET), and within
 * that once for float and once for double (REAL). Plain loops with `omp simd` serve all of them;
 * the one loop that matters most, the sums of float32, has a form of its own for AVX-512 and AVX2.
 * There bfloat16 and float16 are summed where they lie, and converted only to be read again.
 */

#ifndef TARGET
/* ======================================================================== once: what is shared */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "calls.h"

#if defined(__GNUC__) && defined(__x86_64__) && defined(__linux__)
#define DISPATCH 1
#endif
#if defined(__SSE2__) || defined(_M_X64)
#include <immintrin.h>
#endif
#ifndef _WIN32
#include <pthread.h>
#define THREADS 1
#endif
#if defined(_MSC_VER)
#define THREAD_LOCAL __declspec(thread)
#define NOINLINE __declspec(noinline)
#define restrict __restrict
#else
#define THREAD_LOCAL _Thread_local
/* Aligned, or a loop of a few instructions takes a tenth longer by what stands before it. */
#define NOINLINE __attribute__((noinline, aligned(64)))
#define ALWAYS_INLINE __attribute__((always_inline)) static inline
#endif

enum row {
    NUMEL, NUM_FINITE, MEAN, M2, L1, SUM_SQUARES, MIN, MAX, ZEROS, NANS, POSINF, NEGINF, SUBNORMAL,
    NUM_TENSORS, NUM_BINNED, LEAST_BIN, ROW
};
enum dtype {
    FLOAT32, FLOAT64, BFLOAT16, FLOAT16, UINT8, INT8, INT16, INT32, INT64, BOOL, NUM_DTYPES
};
#define POINTER(type, value) ((type *)(intptr_t)(value))

static const int ITEMSIZE[NUM_DTYPES] = {4, 8, 2, 2, 1, 1, 2, 4, 8, 1};

/* Below these, nonzero elements are subnormal in their own dtype. Integers have none, and 1 is the
   smallest magnitude that need not be looked at again for zeros. */
static const double LIMIT[NUM_DTYPES] = {
    FLT_MIN, DBL_MIN, FLT_MIN, 0x1p-14, 1, 1, 1, 1, 1, 1,
};

enum {
    BLOCK = 16384,       /* elements measured at once where they lie: 64 KiB of float32 */
    BUFFER = 4096,       /* elements measured at once where they are converted first */
    TILE = 64,           /* columns measured at once, one lane for each */
    TILE_ROWS = 1024,    /* rows of a tile read where they lie: 256 KiB, a part of the L2 cache */
    TILE_BUFFER = 16384, /* elements of a tile that are converted first */
    NARROW = 32,         /* inner extents below this are columns, if there are as many rows */
    GIL_ELEMENTS = 16384,       /* below, a call takes microseconds: not worth letting others in */
    THREAD_ELEMENTS = 1 << 20,  /* fewer elements than this are not worth a thread */
    BINS = 8192,
    HALF = BINS / 2,            /* bins of one sign */
    FINITE = HALF - 16,         /* of these, the last 16 hold infinities and NaN */
    TABLES = 4,                 /* neighbours count in different tables: no store waits */
    TABLE = BINS + 80,          /* tables that are not a power of two apart share no cache set */
    FLUSH_ELEMENTS = 1 << 30,   /* before a count of 32 bits could overflow */
    LIST_ELEMENTS = UINT16_MAX, /* the most that are counted into a list: its counts have 16 bits */
    NO_OWNER = -1,                /* the owner of a list that counts no longer */
    STRATA = 2048,              /* strata whose places are known at once */
    REACH = 1 << 30,            /* elements that they cover at most: places have 32 bits */
    SLOTS = 4,                  /* sizes of tensors whose places a thread remembers */
    LISTED = 64,                /* bins whose counts are read and cleared at once */
};

/* Results of one look at a block. `least` is the smallest magnitude. */
typedef struct {
    double sum, squares, l1, low, high, least;
} Sums;

/* A block measured. `least` is the smallest nonzero magnitude. */
typedef struct {
    double numel, finite, mean, m2, l1, squares, low, high, zeros, nans, posinf, neginf, subnormal;
    double least;
} Block;

/* Memory that is wanted soon: it is asked for while numbers are summed, which waits for none. */
typedef struct {
    const char *next;
    int64_t bytes; /* for each 32 elements that are summed */
} Ahead;
static const Ahead NOTHING = {NULL, 0};

/* Fewer halves than are taken at once. */
typedef struct {
    uint16_t elements[32], repeated[32];
} Rest;

/* One instruction set's functions. Those of double serve float64, int32 and int64. */
typedef struct {
    const char *name;
    void (*measure_float)(const float *, int64_t, double, Ahead, Block *);
    void (*measure_double)(const double *, int64_t, double, Ahead, Block *);
    void (*measure_half)(const void *, int64_t, int, Ahead, float *, Block *); /* or NULL */
    void (*tile_float)(const float *, int64_t, int64_t, int, double, double *, int64_t, int64_t);
    void (*tile_double)(const double *, int64_t, int64_t, int, double, double *, int64_t, int64_t);
    int64_t (*minus_zeros_float)(const float *, int64_t);
    int64_t (*minus_zeros_double)(const double *, int64_t);
    void (*add_float)(const float *, int64_t, int64_t, int, double *);
    void (*add_double)(const double *, int64_t, int64_t, int, double *);
    void (*convert[NUM_DTYPES])(const void *, int64_t, void *);
    void (*positions)(int64_t, int, double, uint32_t, int64_t, int32_t *);
    int (*list_counts)(uint32_t *, int, int, uint16_t *, uint32_t *);
    int16_t (*top16)(const int16_t *, int64_t, int16_t);
    int32_t (*top32)(const int32_t *, int64_t, int32_t);
    int64_t (*top64)(const int64_t *, int64_t, int64_t);
} Target;

static void merge_block(double *row, const Block *block) {
    row[NUMEL] += block->numel;
    row[ZEROS] += block->zeros;
    row[NANS] += block->nans;
    row[POSINF] += block->posinf;
    row[NEGINF] += block->neginf;
    row[SUBNORMAL] += block->subnormal;
    row[L1] += block->l1;
    row[SUM_SQUARES] += block->squares;
    row[MIN] = block->low < row[MIN] ? block->low : row[MIN];
    row[MAX] = block->high > row[MAX] ? block->high : row[MAX];
    if (block->finite == 0)
        return;
    double before = row[NUM_FINITE], total = before + block->finite;
    row[NUM_FINITE] = total;
    if (before == 0) {
        row[MEAN] = block->mean;
        row[M2] = block->m2;
        return;
    }
    double delta = block->mean - row[MEAN], share = block->finite / total;
    row[M2] += block->m2 + (delta == 0 ? 0 : delta * delta * before * share);
    if (fabs(delta) <= DBL_MAX)
        row[MEAN] += delta * share;
    else /* Means of 1e308 on both sides: their difference overflows, the mean does not. */
        row[MEAN] = row[MEAN] * (before / total) + block->mean * share;
}

static void merge_row(double *to, const double *from) {
    Block block = {
        from[NUMEL], from[NUM_FINITE], from[MEAN], from[M2], from[L1], from[SUM_SQUARES],
        from[MIN], from[MAX], from[ZEROS], from[NANS], from[POSINF], from[NEGINF],
        from[SUBNORMAL], 0,
    };
    merge_block(to, &block);
    to[NUM_TENSORS] += from[NUM_TENSORS];
    to[NUM_BINNED] += from[NUM_BINNED];
    /* One more than the least magnitude's bin, so that 0 is none. */
    if (from[LEAST_BIN] > 0 && (to[LEAST_BIN] == 0 || from[LEAST_BIN] < to[LEAST_BIN]))
        to[LEAST_BIN] = from[LEAST_BIN];
}

static void empty_row(double *row) {
    memset(row, 0, ROW * sizeof *row);
    row[MIN] = INFINITY;
    row[MAX] = -INFINITY;
}

/* A well-mixed 32-bit hash (the multipliers are of the "lowbias32" search by C. Wellons, public
   domain), so that positions have no pattern that a tensor could share. */
static inline uint32_t mixed(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

/* ------------------------------------------------------------------- each instruction set, once */

#define PASTE3(a, b, c) a##_##b##_##c
#define NAME3(a, b, c) PASTE3(a, b, c)
#define PASTE2(a, b) a##_##b
#define NAME2(a, b) PASTE2(a, b)
#define TEXT2(a) #a
#define TEXT(a) TEXT2(a)
#define FN(name) NAME3(name, REAL, TARGET)
#define TFN(name) NAME2(name, TARGET)
#if defined(__GNUC__)
#define SIMD(clauses) _Pragma(TEXT2(omp simd clauses))
#else
#define SIMD(clauses)
#endif

#define TARGET baseline
#define LEVEL 1
#include "kernel.c"
#undef TARGET
#undef LEVEL

#ifdef DISPATCH
#define AVX2 "avx2,fma,f16c,bmi,bmi2,popcnt"
#define AVX512 AVX2 ",avx512f,avx512dq,avx512bw,avx512vl"
#ifdef __clang__
#pragma clang attribute push(__attribute__((target(AVX2))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,popcnt")
#endif
#define TARGET avx2
#define LEVEL 2
#include "kernel.c"
#undef TARGET
#undef LEVEL
#ifdef __clang__
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target(AVX512))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,prefer-vector-width=512")
#endif
#define TARGET avx512
#define LEVEL 3
#include "kernel.c"
#undef TARGET
#undef LEVEL
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

static const Target *target = &target_baseline;

static const Target *supported(const char *name) {
#ifdef DISPATCH
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                 __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    if (avx512 && (!*name || !strcmp(name, "avx512")))
        return &target_avx512;
    if (avx2 && (!*name || !strcmp(name, "avx2")))
        return &target_avx2;
#endif
    return !*name || !strcmp(name, "baseline") ? &target_baseline : NULL;
}

/* torch.set_flush_denormal() makes this thread's arithmetic read subnormals as zeros; they are to
   be counted as what they are. Returns what to put back. */
static uint64_t keep_subnormals(void) {
#if defined(__SSE2__) || defined(_M_X64)
    unsigned state = _mm_getcsr();
    if (state & 0x8040)
        _mm_setcsr(state & ~0x8040u);
    return state;
#elif defined(__aarch64__) && defined(__GNUC__)
    uint64_t state;
    __asm__ volatile("mrs %0, fpcr" : "=r"(state));
    if (state >> 24 & 1)
        __asm__ volatile("msr fpcr, %0" : : "r"(state & ~(1ull << 24)));
    return state;
#else
    return 0;
#endif
}

static void restore_subnormals(uint64_t state) {
#if defined(__SSE2__) || defined(_M_X64)
    if (state & 0x8040)
        _mm_setcsr((unsigned)state);
#elif defined(__aarch64__) && defined(__GNUC__)
    if (state >> 24 & 1)
        __asm__ volatile("msr fpcr, %0" : : "r"(state));
#else
    (void)state;
#endif
}

static int is_wide(int dtype) { return dtype == FLOAT64 || dtype == INT32 || dtype == INT64; }

static int lies_ready(int dtype) { return dtype == FLOAT32 || dtype == FLOAT64; }

/* `numel` elements from `index` on as float or double: where they lie, or in `buffer`. */
static const void *fetch(const char *data, int dtype, int64_t index, int64_t numel, void *buffer) {
    const char *place = data + index * ITEMSIZE[dtype];
    if (lies_ready(dtype))
        return place;
    target->convert[dtype](place, numel, buffer);
    return buffer;
}

/* Asks for what is converted next, which would else wait for the memory while nothing is summed. */
static void ask_for(const char *data, int dtype, int64_t index, int64_t end) {
#if defined(__GNUC__)
    int64_t numel = end - index < BUFFER ? end - index : BUFFER;
    for (int64_t place = 0; place < numel * ITEMSIZE[dtype]; place += 64)
        __builtin_prefetch(data + index * ITEMSIZE[dtype] + place, 0, 2);
#else
    (void)data, (void)dtype, (void)index, (void)end;
#endif
}

static void measure(const void *x, int64_t numel, int dtype, Ahead ahead, Block *block) {
    if (is_wide(dtype))
        target->measure_double(x, numel, LIMIT[dtype], ahead, block);
    else
        target->measure_float(x, numel, LIMIT[dtype], ahead, block);
}

/* ------------------------------------------------------------------------------- the histogram */

/* Counts of this thread, zero between calls: only bins between the smallest and the largest
   magnitude seen are read back and cleared, so that a small tensor pays for its own bins. */
static THREAD_LOCAL uint32_t own_tables[TABLES * TABLE];

/* Histograms as lists of their bins and counts, one tensor after the other: written once and in
   order, where a histogram of all bins would have to be fetched from far away, and emptied. Made by
   Python (native.Lists), hence plain integers. */
typedef struct {
    int64_t max_bins, max_lists, num_bins, num_lists;
    int64_t bins, counts; /* uint16_t[max_bins] each */
    int64_t ends, owners; /* int64_t[max_lists] each: where a list ends, and whose it is */
    int64_t num_forgotten; /* lists without an owner */
} Lists;

/* Facts that decide where samples are taken. */
typedef struct {
    double width; /* elements of one stratum */
    uint32_t seed;
} Strata;

/* Where the elements of strata [first, first + count) lie, counted from `base`. */
typedef struct {
    Strata strata;
    int64_t first, base;
    int count;
    int32_t at[STRATA];
} Places;

/* Kept by each thread: a step of training measures tensors of few sizes, again and again. */
static THREAD_LOCAL Places own_places[SLOTS];

typedef struct {
    int64_t *histogram;
    Lists *lists;            /* takes the counts in place of `histogram` */
    int64_t next, num_strata; /* 0: every element */
    Strata strata;
    uint32_t *tables; /* of this thread; finding them takes a call */
    int64_t pending, negative, binned;
    int first, last, nonfinite, least;
} Bins;

/* The bin of a double rounded to float32 towards zero; what exceeds float32 is put with its
   largest values, and what is too small with its smallest. */
static inline uint32_t bin_of_double(double x) {
    float narrow = (float)x;
    uint32_t bits;
    memcpy(&bits, &narrow, 4);
    bits -= fabs((double)narrow) > fabs(x);
    return bits >> 19;
}

static inline uint64_t two_floats(const float *x) {
    uint64_t bits;
    memcpy(&bits, x, 8);
    return bits;
}

/* The tables come as an argument that the compiler cannot see through, else it looks up the
   thread's own for every element. */
NOINLINE static void count_floats(uint32_t *restrict tables, const float *restrict x, int64_t n) {
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        uint64_t a = two_floats(x + i), b = two_floats(x + i + 2);
        tables[(a >> 19) & (BINS - 1)]++;
        tables[TABLE + (a >> 51)]++;
        tables[2 * TABLE + ((b >> 19) & (BINS - 1))]++;
        tables[3 * TABLE + (b >> 51)]++;
    }
    for (; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        tables[bits >> 19]++;
    }
}

NOINLINE static void count_doubles(uint32_t *restrict tables, const double *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        tables[(i & 3) * TABLE + bin_of_double(x[i])]++;
}

static inline uint64_t bin_at(const float *x, int32_t place) {
    uint32_t bits;
    memcpy(&bits, x + place, 4);
    return bits >> 19;
}

NOINLINE static void count_floats_at(uint32_t *restrict tables, const float *restrict x,
                                     const int32_t *restrict at, int n) {
    int i = 0;
    for (; i + 4 <= n; i += 4) {
        tables[bin_at(x, at[i])]++;
        tables[TABLE + bin_at(x, at[i + 1])]++;
        tables[2 * TABLE + bin_at(x, at[i + 2])]++;
        tables[3 * TABLE + bin_at(x, at[i + 3])]++;
    }
    for (; i < n; i++)
        tables[bin_at(x, at[i])]++;
}

NOINLINE static void count_doubles_at(uint32_t *restrict tables, const double *restrict x,
                                      const int32_t *restrict at, int n) {
    for (int i = 0; i < n; i++)
        tables[(i & 3) * TABLE + bin_of_double(x[at[i]])]++;
}

/* By the bits, without a branch: after a ReLU zeros and other numbers alternate at random. */
static int64_t minus_zeros_at(const void *x, int wide, const int32_t *at, int n) {
    int64_t found = 0;
    for (int i = 0; wide && i < n; i++) {
        uint64_t bits;
        memcpy(&bits, (const double *)x + at[i], sizeof bits);
        found += bits == UINT64_C(1) << 63;
    }
    for (int i = 0; !wide && i < n; i++) {
        uint32_t bits;
        memcpy(&bits, (const float *)x + at[i], sizeof bits);
        found += bits == UINT32_C(1) << 31;
    }
    return found;
}

/* Counts the elements at some places; returns how many of them are -0. Places are counted from
   `base` elements after x, which may lie outside of it. */
static int64_t count_at(uint32_t *tables, const void *x, int wide, int64_t base, const int32_t *at,
                        int n, int any_zeros) {
    x = POINTER(const void, (intptr_t)x + base * (wide ? 8 : 4));
    if (wide)
        count_doubles_at(tables, x, at, n);
    else
        count_floats_at(tables, x, at, n);
    return any_zeros ? minus_zeros_at(x, wide, at, n) : 0;
}

/* The places of a stratum and of those after it. */
static const Places *places_of(const Bins *bins, int64_t stratum) {
    Strata strata = bins->strata;
    double most = REACH / strata.width;
    int64_t count = most > STRATA ? STRATA : most < 1 ? 1 : (int64_t)most;
    int64_t first = stratum / count * count;
    Places *places = own_places + (mixed((uint32_t)(int64_t)strata.width) & (SLOTS - 1));
    if (places->strata.width != strata.width || places->strata.seed != strata.seed ||
        places->first != first || places->count == 0) {
        places->strata = strata;
        places->first = first;
        places->count = (int)count;
        places->base = (int64_t)((double)first * strata.width);
        target->positions(first, places->count, strata.width, strata.seed, places->base,
                          places->at);
    }
    return places;
}

/* Takes the strata whose element lies in the block that begins at `begin`. */
static void take_sample(Bins *bins, const void *x, int wide, int64_t begin, const Block *block) {
    int64_t end = begin + (int64_t)block->numel;
    while (bins->next < bins->num_strata) {
        const Places *places = places_of(bins, bins->next);
        int64_t after = (int64_t)((double)end / bins->strata.width) + 2 - places->first;
        int64_t known = places->count, left = bins->num_strata - places->first;
        known = known < left ? known : left;
        after = after < known ? after : known;
        int64_t from = bins->next - places->first;
        while (after > from && places->at[after - 1] + places->base >= end)
            after--;
        if (after <= from)
            return;
        bins->negative += count_at(bins->tables, x, wide, places->base - begin, places->at + from,
                                   (int)(after - from), block->zeros > 0);
        bins->next += after - from;
        bins->pending += after - from;
        if (after < known)
            return;
    }
}

static int magnitude_bin(double x) { return (int)(bin_of_double(x) & (HALF - 1)); }

static void put(Bins *bins, const uint16_t *listed, const uint32_t *counts, int length) {
    Lists *lists = bins->lists;
    for (int i = 0; i < length; i++)
        bins->binned += counts[i];
    for (int i = 0; !lists && i < length; i++)
        bins->histogram[listed[i]] += counts[i];
    if (!lists)
        return;
    uint16_t *to_bins = POINTER(uint16_t, lists->bins) + lists->num_bins;
    uint16_t *to_counts = POINTER(uint16_t, lists->counts) + lists->num_bins;
    for (int i = 0; i < length; i++) {
        to_bins[i] = listed[i];
        to_counts[i] = (uint16_t)counts[i];
    }
    lists->num_bins += length;
}

/* Hands on the counts of bins [first, last] and clears them. */
static void move_counts(Bins *bins, int first, int last) {
    uint16_t listed[LISTED];
    uint32_t counts[LISTED];
    for (int bin = first; bin <= last; bin += LISTED) {
        int n = last - bin < LISTED ? last - bin + 1 : LISTED;
        put(bins, listed, counts, target->list_counts(bins->tables, bin, n, listed, counts));
    }
}

static void flush(Bins *bins) {
    bins->tables[0] += (uint32_t)bins->negative; /* -0 counts as 0. */
    bins->tables[HALF] -= (uint32_t)bins->negative;
    for (int side = 0; side < BINS; side += HALF) {
        move_counts(bins, side, side);
        move_counts(bins, side + (bins->first ? bins->first : 1), side + bins->last);
        for (int table = 0; bins->nonfinite && table < TABLES; table++)
            memset(bins->tables + table * TABLE + side + FINITE, 0,
                   (HALF - FINITE) * sizeof(uint32_t));
    }
    bins->pending = bins->negative = 0;
    bins->least = bins->first < bins->least ? bins->first : bins->least;
    bins->first = HALF;
    bins->last = bins->nonfinite = 0;
}

#ifdef THREADS
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
#define LOCK pthread_mutex_lock(&one_at_a_time)
#define UNLOCK pthread_mutex_unlock(&one_at_a_time)
static void lock_for_fork(void) { LOCK; }
static void unlock_after_fork(void) { UNLOCK; }
/* A child would wait for ever for a lock that a thread of its parent held. */
static int mind_forks(void) {
    static int is_done;
    if (!is_done && pthread_atfork(lock_for_fork, unlock_after_fork, unlock_after_fork)) {
        PyErr_NoMemory();
        return -1;
    }
    is_done = 1;
    return 0;
}
#else
#define LOCK (void)0
#define UNLOCK (void)0
static int mind_forks(void) { return 0; }
#endif

static void tally(Bins *bins, const void *x, int dtype, int64_t begin, const Block *block) {
    int64_t n = (int64_t)block->numel;
    double high = fmax(fabs(block->low), fabs(block->high));
    if (block->finite > 0) {
        int first = magnitude_bin(block->least), last = magnitude_bin(high);
        bins->first = first < bins->first ? first : bins->first;
        bins->last = last > bins->last ? last : bins->last;
    }
    bins->nonfinite |= block->finite < block->numel;
    if (bins->num_strata) {
        take_sample(bins, x, is_wide(dtype), begin, block);
    } else {
        if (is_wide(dtype))
            count_doubles(bins->tables, x, n);
        else
            count_floats(bins->tables, x, n);
        bins->pending += n;
        if (block->zeros > 0)
            bins->negative += is_wide(dtype) ? target->minus_zeros_double(x, n)
                                             : target->minus_zeros_float(x, n);
    }
    if (bins->pending > FLUSH_ELEMENTS) {
        LOCK;
        flush(bins);
        UNLOCK;
    }
}

/* -------------------------------------------------------------------------- a contiguous run */

typedef struct {
    const char *data;
    int dtype;
    int64_t begin, end;
    double row[ROW];
    Bins bins;
    Ahead ahead;
} Run;

/* The first stratum whose element is not before `begin`. */
static int64_t first_stratum(const Bins *bins, int64_t begin) {
    int64_t stratum = (int64_t)((double)begin / bins->strata.width) - 1;
    for (stratum = stratum < 0 ? 0 : stratum; stratum < bins->num_strata; stratum++) {
        const Places *places = places_of(bins, stratum);
        if (places->at[stratum - places->first] + places->base >= begin)
            break;
    }
    return stratum;
}

static void *measure_run(void *argument) {
    Run *run = argument;
    union {
        float narrow[BUFFER];
        double wide[BUFFER];
    } buffer;
    int64_t step = run->dtype == FLOAT32 ? BLOCK : BUFFER;
    int is_half = run->dtype == BFLOAT16 || run->dtype == FLOAT16;
    /* A histogram has its values converted anyway. */
    int sums_halves = is_half && target->measure_half && !run->bins.histogram;
    run->bins.tables = own_tables;
    if (run->bins.num_strata)
        run->bins.next = first_stratum(&run->bins, run->begin);
    for (int64_t i = run->begin; i < run->end; i += step) {
        int64_t n = run->end - i < step ? run->end - i : step;
        const void *x = &buffer;
        Block block;
        if (sums_halves) {
            const char *place = run->data + i * ITEMSIZE[run->dtype];
            target->measure_half(place, n, run->dtype, run->ahead, buffer.narrow, &block);
        } else {
            x = fetch(run->data, run->dtype, i, n, &buffer);
            if (!lies_ready(run->dtype))
                ask_for(run->data, run->dtype, i + n, run->end);
            measure(x, n, run->dtype, run->ahead, &block);
        }
        run->ahead.next += n / 32 * run->ahead.bytes;
        merge_block(run->row, &block);
        if (run->bins.histogram)
            tally(&run->bins, x, run->dtype, i, &block);
    }
    if (run->bins.histogram) {
        LOCK;
        flush(&run->bins);
        UNLOCK;
        run->row[NUM_BINNED] += (double)run->bins.binned;
        if (!run->bins.lists)
            run->row[LEAST_BIN] = run->bins.least + 1;
    }
    return NULL;
}

/* Runs `work` on each of the jobs, the first of them here. What cannot get a thread runs here. */
static void in_parallel(void *(*work)(void *), char *jobs, size_t size, int count) {
#ifdef THREADS
    pthread_t threads[64];
    char started[64] = {0};
    for (int i = 1; i < count; i++)
        started[i] = !pthread_create(&threads[i], NULL, work, jobs + i * size);
    work(jobs);
    for (int i = 1; i < count; i++) {
        if (started[i])
            pthread_join(threads[i], NULL);
        else
            work(jobs + i * size);
    }
#else
    for (int i = 0; i < count; i++)
        work(jobs + i * size);
#endif
}

static int useful_threads(int64_t threads, int64_t numel) {
    int64_t most = numel / THREAD_ELEMENTS;
    threads = threads < most ? threads : most;
    return threads < 1 ? 1 : threads > 64 ? 64 : (int)threads;
}

static void start_run(Run *run, const char *data, int dtype, int64_t begin, int64_t end) {
    run->data = data;
    run->dtype = dtype;
    run->begin = begin;
    run->end = end;
    run->ahead = NOTHING;
    empty_row(run->row);
}

/* Whether only a sample is counted in the histogram: of more than twice as many elements, for
   looking up an element at a hashed place takes as long as counting two neighbours. */
static int is_sampled(int64_t numel, int64_t sample) {
    return sample > 0 && (numel - 1) / 2 >= sample;
}

static void accumulate(const char *data, int64_t numel, int dtype, double *row, int64_t *histogram,
                       Lists *lists, int64_t sample, Ahead ahead, int64_t wanted_threads) {
    Bins bins = {.histogram = histogram, .lists = lists, .first = HALF, .least = HALF};
    if (is_sampled(numel, sample)) {
        bins.num_strata = sample;
        bins.strata.width = (double)numel / (double)sample;
        /* Successive tensors of a site are looked at in different places. */
        bins.strata.seed = mixed((uint32_t)(int64_t)row[NUM_TENSORS] + 0x9e3779b9u);
    }
    int threads = useful_threads(wanted_threads, numel);
    if (threads == 1) {
        Run run;
        start_run(&run, data, dtype, 0, numel);
        run.bins = bins;
        run.ahead = ahead.next ? ahead : (Ahead){data, 0}; /* No address is asked for in vain. */
        measure_run(&run);
        run.row[NUM_TENSORS] = 1;
        merge_row(row, run.row);
        return;
    }
    Run runs[64];
    int64_t blocks = (numel + BLOCK - 1) / BLOCK;
    for (int i = 0; i < threads; i++) {
        int64_t begin = blocks * i / threads * BLOCK, end = blocks * (i + 1) / threads * BLOCK;
        start_run(&runs[i], data, dtype, begin, end < numel ? end : numel);
        runs[i].bins = bins;
    }
    in_parallel(measure_run, (char *)runs, sizeof(Run), threads);
    for (int i = 0; i < threads; i++)
        merge_row(row, runs[i].row);
    row[NUM_TENSORS] += 1;
}

/* ---------------------------------------------------------------------------------- channels */

typedef struct {
    const char *data;
    int dtype;
    int64_t outer, channels, inner, first, last;
    double *rows;
} Slab;

/* Columns [first, last) of a matrix of `outer` rows; column c belongs to channel c / inner. */
static void measure_columns(const Slab *slab) {
    double buffer[TILE_BUFFER];
    int64_t columns = slab->channels * slab->inner;
    int64_t begin = slab->first * slab->inner, end = slab->last * slab->inner;
    int ready = lies_ready(slab->dtype), wide = is_wide(slab->dtype);
    for (int64_t c = begin; c < end; c += TILE) {
        int width = end - c < TILE ? (int)(end - c) : TILE;
        int64_t most = ready ? TILE_ROWS : TILE_BUFFER / width;
        most = most > TILE_ROWS ? TILE_ROWS : most;
        for (int64_t r = 0; r < slab->outer; r += most) {
            int64_t rows = slab->outer - r < most ? slab->outer - r : most;
            int64_t stride = ready ? columns : width;
            const char *x = slab->data + (r * columns + c) * ITEMSIZE[slab->dtype];
            for (int64_t i = 0; !ready && i < rows; i++)
                target->convert[slab->dtype](x + i * columns * ITEMSIZE[slab->dtype], width,
                                             (char *)buffer + i * width * (wide ? 8 : 4));
            const void *tile = ready ? (const void *)x : buffer;
            if (wide)
                target->tile_double(tile, rows, stride, width, LIMIT[slab->dtype], slab->rows, c,
                                    slab->inner);
            else
                target->tile_float(tile, rows, stride, width, LIMIT[slab->dtype], slab->rows, c,
                                   slab->inner);
        }
    }
}

/* One channel whose elements come in runs of `inner`: short runs are put together first. */
static void measure_channel(const Slab *slab, int64_t channel) {
    union {
        float narrow[BUFFER];
        double wide[BUFFER];
    } buffer;
    int wide = is_wide(slab->dtype), together = 0;
    double *row = slab->rows + channel * ROW;
    Block block;
    for (int64_t o = 0; o < slab->outer; o++) {
        int64_t start = (o * slab->channels + channel) * slab->inner;
        for (int64_t i = 0; i < slab->inner;) {
            int64_t n = slab->inner - i < BUFFER - together ? slab->inner - i : BUFFER - together;
            if (lies_ready(slab->dtype) && together == 0 && n >= BUFFER / 8) {
                measure(slab->data + (start + i) * ITEMSIZE[slab->dtype], n, slab->dtype, NOTHING, &block);
                merge_block(row, &block);
            } else {
                void *to = (char *)&buffer + together * (wide ? 8 : 4);
                target->convert[slab->dtype](slab->data + (start + i) * ITEMSIZE[slab->dtype], n,
                                             to);
                together += (int)n;
            }
            i += n;
            if (together == BUFFER || (together && o + 1 == slab->outer && i == slab->inner)) {
                measure(&buffer, together, slab->dtype, NOTHING, &block);
                merge_block(row, &block);
                together = 0;
            }
        }
    }
}

static void *measure_slab(void *argument) {
    const Slab *slab = argument;
    if (slab->inner == 1 || (slab->inner < NARROW && slab->outer >= NARROW)) {
        measure_columns(slab);
        return NULL;
    }
    for (int64_t channel = slab->first; channel < slab->last; channel++)
        measure_channel(slab, channel);
    return NULL;
}

static void accumulate_channels(const char *data, int64_t outer, int64_t channels, int64_t inner,
                                int dtype, double *rows, int64_t wanted_threads) {
    if (channels == 0)
        return; /* Not even one thread would have something to do. */
    int threads = useful_threads(wanted_threads, outer * channels * inner);
    threads = channels < threads * 16 ? (int)((channels + 15) / 16) : threads;
    Slab slabs[64];
    for (int i = 0; i < threads; i++) {
        Slab slab = {
            data, dtype, outer, channels, inner,
            channels * i / threads, channels * (i + 1) / threads, rows,
        };
        slabs[i] = slab;
    }
    in_parallel(measure_slab, (char *)slabs, sizeof(Slab), threads);
    for (int64_t channel = 0; channel < channels; channel++)
        rows[channel * ROW + NUM_TENSORS] += 1;
}

static void accumulate_sum(const char *data, int64_t outer, int64_t inner, int dtype,
                           double *sums) {
    double buffer[BUFFER];
    int ready = lies_ready(dtype), wide = is_wide(dtype);
    for (int64_t c = 0; c < inner; c += BUFFER / 8) {
        int width = inner - c < BUFFER / 8 ? (int)(inner - c) : BUFFER / 8;
        int64_t most = ready ? outer : BUFFER / width;
        for (int64_t r = 0; r < outer; r += most) {
            int64_t rows = outer - r < most ? outer - r : most, stride = ready ? inner : width;
            const char *x = data + (r * inner + c) * ITEMSIZE[dtype];
            for (int64_t i = 0; !ready && i < rows; i++)
                target->convert[dtype](x + i * inner * ITEMSIZE[dtype], width,
                                       (char *)buffer + i * width * (wide ? 8 : 4));
            const void *tile = ready ? (const void *)x : buffer;
            if (wide)
                target->add_double(tile, rows, stride, width, sums + c);
            else
                target->add_float(tile, rows, stride, width, sums + c);
        }
    }
}

/* -------------------------------------------------------------------- is everything finite */

/* A tensor without gaps. Made by Python (native.are_finite), hence plain integers. */
typedef struct {
    int64_t data, numel, dtype;
} Piece;

/* A look at elements [begin, end) of all pieces, one after the other. */
typedef struct {
    const Piece *pieces;
    int64_t count, begin, end;
    int finite;
} Look;

/* NaN and Inf are what has the largest exponent. Nothing is computed: it costs reading them. */
static int is_finite(const char *data, int64_t numel, int dtype) {
    const int64_t infinite = 0x7ffll << 52;
    switch (dtype) {
    case FLOAT32: return target->top32((const int32_t *)data, numel, 0x7f800000) < 0x7f800000;
    case FLOAT64: return target->top64((const int64_t *)data, numel, infinite) < infinite;
    case BFLOAT16: return target->top16((const int16_t *)data, numel, 0x7f80) < 0x7f80;
    case FLOAT16: return target->top16((const int16_t *)data, numel, 0x7c00) < 0x7c00;
    default: return 1;
    }
}

static void *look(void *argument) {
    Look *own = argument;
    int64_t place = 0;
    own->finite = 1;
    for (int64_t i = 0; own->finite && i < own->count; i++) {
        Piece piece = own->pieces[i];
        int64_t first = own->begin > place ? own->begin - place : 0;
        int64_t last = own->end - place < piece.numel ? own->end - place : piece.numel;
        if (first < last)
            own->finite = is_finite(POINTER(const char, piece.data) + first * ITEMSIZE[piece.dtype],
                                    last - first, (int)piece.dtype);
        place += piece.numel;
    }
    return NULL;
}

static int are_finite(const Piece *pieces, int64_t count, int64_t numel, int64_t wanted_threads) {
    Look looks[64];
    int finite = 1, threads = useful_threads(wanted_threads, numel);
    for (int i = 0; i < threads; i++)
        looks[i] = (Look){pieces, count, numel * i / threads, numel * (i + 1) / threads, 1};
    in_parallel(look, (char *)looks, sizeof(Look), threads);
    for (int i = 0; i < threads; i++)
        finite &= looks[i].finite;
    return finite;
}

/* Between which bins of magnitudes, besides that of 0, a row has counted. */
static void bins_in_use(const double *row, int *first, int *last) {
    *first = row[LEAST_BIN] >= 2 ? (int)row[LEAST_BIN] - 1 : 1;
    *last = magnitude_bin(fmax(fabs(row[MIN]), fabs(row[MAX])));
}

/* ------------------------------------------------------------------------- what one meter wants */

/* Rows of the slices along one dim of a tensor: `count` of them, of runs of `inner` elements that
   lie together. Made by Python (native.KernelArgs), hence plain integers. */
typedef struct {
    int64_t rows, count, inner;
} Slices;

/* The lists, if the histogram of `numel` elements is sure to fit in there. */
static Lists *with_room(Lists *lists, int64_t numel, int64_t sample) {
    int64_t counted = is_sampled(numel, sample) ? sample : numel;
    int64_t most = counted < BINS ? counted : BINS;
    int fits = lists && counted <= LIST_ELEMENTS && numel < 2 * THREAD_ELEMENTS &&
               most <= lists->max_bins - lists->num_bins && lists->num_lists < lists->max_lists;
    return fits ? lists : NULL;
}

/* Empties the bins that a row has counted into. Only those between the least and the largest
   magnitude are looked at: untouched memory stays untouched. */
static void clear_bins(const double *row, int64_t *histogram) {
    int first, last;
    bins_in_use(row, &first, &last);
    for (int side = 0; side < BINS; side += HALF) {
        histogram[side] = 0;
        for (int bin = side + first; bin <= side + last; bin++)
            histogram[bin] = 0;
    }
}

/* Forgets the one tensor that was measured, wherever its histogram is. A list stays where it is
   and has no owner. */
static void forget(Aim *aim) {
    double *row = POINTER(double, aim->row);
    Lists *lists = POINTER(Lists, aim->lists);
    if (row[NUM_BINNED] > 0 && row[LEAST_BIN] > 0) {
        clear_bins(row, POINTER(int64_t, aim->histogram));
    } else if (row[NUM_TENSORS] > 0 && lists && aim->last_list < lists->num_lists) {
        int64_t *owner = POINTER(int64_t, lists->owners) + aim->last_list;
        if (*owner == aim->owner) { /* Else the number is of lists that were taken. */
            *owner = NO_OWNER;
            lists->num_forgotten++;
        }
    }
    empty_row(row);
    const Slices *slices = POINTER(const Slices, aim->slices);
    for (int64_t i = 0; i < aim->num_slices; i++)
        for (int64_t slice = 0; slice < slices[i].count; slice++)
            empty_row(POINTER(double, slices[i].rows) + slice * ROW);
}

/* Notes that the end of the lists is the histogram of this site's tensor. */
static void end_list(Lists *lists, Aim *aim) {
    aim->last_list = lists->num_lists;
    POINTER(int64_t, lists->ends)[lists->num_lists] = lists->num_bins;
    POINTER(int64_t, lists->owners)[lists->num_lists++] = aim->owner;
}

static void add_samples(const char *data, int64_t numel, int dtype, const Aim *aim) {
    if (!aim->sums || !aim->inner)
        return;
    int64_t samples = numel / aim->inner;
    accumulate_sum(data, samples, aim->inner, dtype, POINTER(double, aim->sums));
    *POINTER(int64_t, aim->num_samples) += samples;
}

static void take(const char *data, int64_t numel, int dtype, Aim *aim, int64_t threads) {
    Lists *lists = with_room(POINTER(Lists, aim->lists), numel, aim->sample);
    Ahead ahead = NOTHING;
    if (aim->sums && numel)
        ahead = (Ahead){POINTER(const char, aim->sums), 256 * aim->inner / numel};
    accumulate(data, numel, dtype, POINTER(double, aim->row), POINTER(int64_t, aim->histogram),
               lists, aim->sample, ahead, threads);
    if (lists)
        end_list(lists, aim);
    add_samples(data, numel, dtype, aim);
    const Slices *slices = POINTER(const Slices, aim->slices);
    for (int64_t i = 0; i < aim->num_slices; i++)
        accumulate_channels(data, numel / (slices[i].count * slices[i].inner), slices[i].count,
                            slices[i].inner, dtype, POINTER(double, slices[i].rows), threads);
}

/* Copies the histogram of the last tensor of a site, if it is in a list that there is room for. */
static int copy_list(const Aim *from, int64_t numel, Aim *to) {
    const Lists *source = POINTER(const Lists, from->lists);
    int64_t list = from->last_list;
    if (!source || list >= source->num_lists ||
        POINTER(const int64_t, source->owners)[list] != from->owner)
        return 0;
    Lists *lists = with_room(POINTER(Lists, to->lists), numel, to->sample);
    if (!lists)
        return 0;
    const int64_t *ends = POINTER(const int64_t, source->ends);
    int64_t begin = list ? ends[list - 1] : 0, length = ends[list] - begin;
    memcpy(POINTER(uint16_t, lists->bins) + lists->num_bins,
           POINTER(const uint16_t, source->bins) + begin, (size_t)length * 2);
    memcpy(POINTER(uint16_t, lists->counts) + lists->num_bins,
           POINTER(const uint16_t, source->counts) + begin, (size_t)length * 2);
    lists->num_bins += length;
    end_list(lists, to);
    return 1;
}

/* Takes for a site what was just measured of the same tensor for another; 0 where that does not give
   the same to the bit. It does where the tensor is the first of the step for both: the row of the
   other is that of the tensor, and samples are taken at the same places. */
static int repeat(const char *data, int64_t numel, int dtype, const Aim *from, Aim *to) {
    const double *row = POINTER(const double, from->row);
    double *own = POINTER(double, to->row);
    if (row[NUM_TENSORS] != 1 || own[NUM_TENSORS] != 0 || from->sample != to->sample ||
        row[LEAST_BIN] > 0 || !from->histogram != !to->histogram || to->num_slices)
        return 0;
    if (to->histogram && !copy_list(from, numel, to))
        return 0;
    memcpy(own, row, ROW * sizeof *own);
    add_samples(data, numel, dtype, to);
    return 1;
}

/* ------------------------------------------------------------------------- the end of a step */

/* Moves the counts of many histograms into lists of bins and counts, one row after the other.
   `ends[row]` is where the row's list ends. Only bins between the least and the largest magnitude
   of a row are looked at: untouched memory stays untouched. */
typedef struct {
    uint16_t *bins;
    int64_t *counts, length;
} List;

static void drain_bins(int64_t *histogram, int first, int last, List *list) {
    for (int bin = first; bin <= last; bin++) {
        if (!histogram[bin])
            continue;
        list->bins[list->length] = (uint16_t)bin;
        list->counts[list->length++] = histogram[bin];
        histogram[bin] = 0;
    }
}

static int64_t drain(const double *rows, int64_t *histograms, int64_t num_rows, List list,
                     int64_t *ends) {
    for (int64_t r = 0; r < num_rows; r++) {
        const double *row = rows + r * ROW;
        int64_t *histogram = histograms + r * BINS;
        int first, last;
        bins_in_use(row, &first, &last);
        for (int side = 0; row[NUM_BINNED] > 0 && side < BINS; side += HALF) {
            drain_bins(histogram, side, side, &list);
            drain_bins(histogram, side + first, side + last, &list);
        }
        ends[r] = list.length;
    }
    return list.length;
}

/* Histograms that are handed to Python, one after the other: where each ends, whose it is, counts of
   `count_size` bytes, bins, and whether each counts a sample. */
typedef struct {
    int64_t num_lists, num_bins, count_size;
    int64_t *ends, *places;
    char *counts, *are_samples;
    uint16_t *bins;
} Listing;

static int is_full(const Measured *block, const double *row) {
    return block->histograms && row[NUM_BINNED] > 0 && row[LEAST_BIN] > 0;
}

static int has_owner(const Lists *lists, int64_t list) {
    return POINTER(const int64_t, lists->owners)[list] != NO_OWNER;
}

static int64_t begin_of(const Lists *lists, int64_t list) {
    return list ? POINTER(const int64_t, lists->ends)[list - 1] : 0;
}

static int64_t num_counted(const int64_t *histogram, int first, int last) {
    int64_t found = 0;
    for (int bin = first; bin <= last; bin++)
        found += histogram[bin] != 0;
    return found;
}

/* Adds up how much there is of a block: in its lists, and beside them. Returns its tensors. */
static double look_at_block(const Measured *block, Listing *listed, Listing *full) {
    const Lists *lists = POINTER(const Lists, block->lists);
    double num_tensors = 0;
    for (int64_t list = 0; lists && list < lists->num_lists; list++) {
        listed->num_lists += has_owner(lists, list);
        listed->num_bins += has_owner(lists, list) ? begin_of(lists, list + 1) - begin_of(lists, list) : 0;
    }
    for (int64_t r = 0; r < block->num_rows; r++) {
        const double *row = POINTER(const double, block->rows) + r * ROW;
        const int64_t *histogram = POINTER(const int64_t, block->histograms) + r * BINS;
        int first, last;
        num_tensors += row[NUM_TENSORS];
        if (!is_full(block, row))
            continue;
        bins_in_use(row, &first, &last);
        full->num_lists++;
        for (int side = 0; side < BINS; side += HALF)
            full->num_bins += (histogram[side] != 0) + num_counted(histogram, side + first, side + last);
    }
    return num_tensors;
}

/* Memory of Python for what was looked at, which is empty from now on; NULL with an exception. */
static PyObject *make_listing(Listing *listing) {
    int64_t lists = listing->num_lists, bins = listing->num_bins;
    PyObject *made = PyBytes_FromStringAndSize(
        NULL, (Py_ssize_t)(lists * 17 + bins * (2 + listing->count_size)));
    if (!made)
        return NULL;
    listing->ends = (int64_t *)(void *)PyBytes_AsString(made);
    listing->places = listing->ends + lists;
    listing->counts = (char *)(listing->places + lists);
    listing->bins = (uint16_t *)(void *)(listing->counts + bins * listing->count_size);
    listing->are_samples = (char *)(listing->bins + bins);
    listing->num_lists = listing->num_bins = 0;
    return made;
}

/* Notes that the end of a listing is the histogram of a row. */
static void end_listed(Listing *listing, const Measured *block, int64_t r) {
    const double *row = POINTER(const double, block->rows) + r * ROW;
    listing->ends[listing->num_lists] = listing->num_bins;
    listing->places[listing->num_lists] = POINTER(const int64_t, block->places)[r];
    listing->are_samples[listing->num_lists++] = row[NUM_BINNED] < row[NUM_FINITE];
}

static void move_lists(const Measured *block, Listing *listed) {
    Lists *lists = POINTER(Lists, block->lists);
    for (int64_t list = 0; lists && list < lists->num_lists; list++) {
        int64_t begin = begin_of(lists, list), length = begin_of(lists, list + 1) - begin;
        if (!has_owner(lists, list))
            continue;
        memcpy(listed->counts + listed->num_bins * 2, POINTER(const uint16_t, lists->counts) + begin,
               (size_t)length * 2);
        memcpy(listed->bins + listed->num_bins, POINTER(const uint16_t, lists->bins) + begin,
               (size_t)length * 2);
        listed->num_bins += length;
        end_listed(listed, block, POINTER(const int64_t, lists->owners)[list]);
    }
    if (lists)
        lists->num_bins = lists->num_lists = lists->num_forgotten = 0;
}

/* Moves the rows of a block to their places, and the histograms that are in no list. */
static void move_rows(const Measured *block, double *to, Listing *full) {
    for (int64_t r = 0; r < block->num_rows; r++) {
        double *row = POINTER(double, block->rows) + r * ROW;
        if (is_full(block, row)) {
            List list = {full->bins, (int64_t *)(void *)full->counts, full->num_bins};
            int64_t end;
            full->num_bins = drain(row, POINTER(int64_t, block->histograms) + r * BINS, 1, list, &end);
            end_listed(full, block, r);
        }
        memcpy(to + POINTER(const int64_t, block->places)[r] * ROW, row, ROW * sizeof *row);
        empty_row(row);
    }
}

/* Adds lists of bins and counts to full histograms, whose addresses are given. */
static void add_lists(const uint16_t *bins, const void *counts, int is_short, const int64_t *ends,
                      int64_t num_lists, const int64_t *histograms) {
    int64_t i = 0;
    for (int64_t list = 0; list < num_lists; list++) {
        int64_t *histogram = POINTER(int64_t, histograms[list]);
        for (; is_short && i < ends[list]; i++)
            histogram[bins[i]] += ((const uint16_t *)counts)[i];
        for (; i < ends[list]; i++)
            histogram[bins[i]] += ((const int64_t *)counts)[i];
    }
}

/* --------------------------------------------------------------------------- the Python door */

/* Reads `count` integers; pointers are integers too. */
static int read_integers(PyObject *const *arguments, Py_ssize_t given, int count, int64_t *values,
                         const char *name) {
    if (given != count) {
        PyErr_Format(PyExc_TypeError, "%s takes %d integers, got %zd", name, count, given);
        return 0;
    }
    for (int i = 0; i < count; i++) {
        values[i] = PyLong_AsLongLong(arguments[i]);
        if (values[i] == -1 && PyErr_Occurred())
            return 0;
    }
    return 1;
}

static int are_right(int64_t dtype, const int64_t *extents, int count) {
    int right = dtype >= 0 && dtype < NUM_DTYPES;
    for (int i = 0; i < count; i++)
        right &= extents[i] >= 0;
    if (!right)
        PyErr_SetString(PyExc_ValueError, "an extent is negative or the dtype code is unknown");
    return right;
}

/* Doing `work` without the GIL where it takes longer than handing the GIL over. */
#define MEASURE(numel, work)                                                                       \
    do {                                                                                           \
        PyThreadState *gil = (numel) > GIL_ELEMENTS ? PyEval_SaveThread() : NULL;                  \
        uint64_t state = keep_subnormals();                                                        \
        work;                                                                                      \
        restore_subnormals(state);                                                                 \
        if (gil)                                                                                   \
            PyEval_RestoreThread(gil);                                                             \
    } while (0)

static PyObject *py_accumulate(PyObject *module, PyObject *const *arguments, Py_ssize_t given) {
    int64_t a[7];
    (void)module;
    if (!read_integers(arguments, given, 7, a, "accumulate") || !are_right(a[2], a + 1, 1))
        return NULL;
    MEASURE(a[1], accumulate(POINTER(const char, a[0]), a[1], (int)a[2], POINTER(double, a[3]),
                             POINTER(int64_t, a[4]), NULL, a[5], NOTHING, a[6]));
    return none();
}

static PyObject *py_take(PyObject *module, PyObject *const *arguments, Py_ssize_t given) {
    int64_t a[5];
    (void)module;
    if (!read_integers(arguments, given, 5, a, "take") || !are_right(a[2], a + 1, 1))
        return NULL;
    MEASURE(a[1], take(POINTER(const char, a[0]), a[1], (int)a[2], POINTER(Aim, a[3]), a[4]));
    return none();
}

static PyObject *py_replace(PyObject *module, PyObject *const *arguments, Py_ssize_t given) {
    int64_t a[5];
    (void)module;
    if (!read_integers(arguments, given, 5, a, "replace") || !are_right(a[2], a + 1, 1))
        return NULL;
    forget(POINTER(Aim, a[3]));
    MEASURE(a[1], take(POINTER(const char, a[0]), a[1], (int)a[2], POINTER(Aim, a[3]), a[4]));
    return none();
}

void torchtap_measure(const char *data, int64_t numel, int code, int64_t aim, int64_t threads,
                      int replaces) {
    if (replaces)
        forget(POINTER(Aim, aim));
    MEASURE(numel, take(data, numel, code, POINTER(Aim, aim), threads));
}

int torchtap_repeat(const char *data, int64_t numel, int code, int64_t from, int64_t to) {
    int could;
    MEASURE(numel, could = repeat(data, numel, code, POINTER(const Aim, from), POINTER(Aim, to)));
    return could;
}

static PyObject *py_channels(PyObject *module, PyObject *const *arguments, Py_ssize_t given) {
    int64_t a[7];
    (void)module;
    if (!read_integers(arguments, given, 7, a, "accumulate_channels") ||
        !are_right(a[4], a + 1, 3))
        return NULL;
    MEASURE(a[1] * a[2] * a[3],
            accumulate_channels(POINTER(const char, a[0]), a[1], a[2], a[3], (int)a[4],
                                POINTER(double, a[5]), a[6]));
    return none();
}

static PyObject *py_sum(PyObject *module, PyObject *const *arguments, Py_ssize_t given) {
    int64_t a[5];
    (void)module;
    if (!read_integers(arguments, given, 5, a, "accumulate_sum") || !are_right(a[3], a + 1, 2))
        return NULL;
    MEASURE(a[1] * a[2], accumulate_sum(POINTER(const char, a[0]), a[1], a[2], (int)a[3],
                                        POINTER(double, a[4])));
    return none();
}

static PyObject *py_merge_rows(PyObject *module, PyObject *const *arguments, Py_ssize_t given) {
    int64_t a[3];
    (void)module;
    if (!read_integers(arguments, given, 3, a, "merge_rows"))
        return NULL;
    for (int64_t r = 0; r < a[2]; r++)
        merge_row(POINTER(double, a[0]) + r * ROW, POINTER(const double, a[1]) + r * ROW);
    return none();
}

static PyObject *py_drain(PyObject *module, PyObject *const *arguments, Py_ssize_t given) {
    int64_t a[6];
    (void)module;
    if (!read_integers(arguments, given, 6, a, "drain"))
        return NULL;
    List list = {POINTER(uint16_t, a[3]), POINTER(int64_t, a[4]), 0};
    return PyLong_FromLongLong(drain(POINTER(const double, a[0]), POINTER(int64_t, a[1]), a[2],
                                     list, POINTER(int64_t, a[5])));
}

/* Nothing here has the collector run: what is looked at first is what is moved. */
int torchtap_close_blocks(const Measured *blocks, int64_t num_blocks, int64_t num_places,
                          PyObject *taken, PyObject *into) {
    Listing listed = {.count_size = 2}, full = {.count_size = 8};
    double num_tensors = 0;
    for (int64_t i = 0; i < num_blocks; i++)
        num_tensors += look_at_block(blocks + i, &listed, &full);
    if (!(num_tensors > 0))
        return 0;
    PyObject *parts[] = {
        PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(num_places * ROW * 8)),
        PyLong_FromLongLong(listed.num_lists), PyLong_FromLongLong(listed.num_bins), make_listing(&listed),
        PyLong_FromLongLong(full.num_lists),   PyLong_FromLongLong(full.num_bins),   make_listing(&full),
    };
    int failed = 0;
    for (int i = 0; i < 7; i++)
        failed |= !parts[i] || PyTuple_SetItem(taken, i, parts[i]);
    if (failed || PyList_Append(into, taken))
        return -1;
    double *rows = (double *)(void *)PyBytes_AsString(parts[0]);
    for (int64_t r = 0; r < num_places; r++)
        empty_row(rows + r * ROW);
    for (int64_t i = 0; i < num_blocks; i++) {
        move_lists(blocks + i, &listed);
        move_rows(blocks + i, rows, &full);
    }
    return 0;
}

static PyObject *py_add_lists(PyObject *module, PyObject *const *arguments, Py_ssize_t given) {
    Py_buffer views[4]; /* bins, counts, ends, addresses */
    int count = 0;
    (void)module;
    if (given != 4)
        return PyErr_Format(PyExc_TypeError, "add_lists takes 4 arrays, got %zd", given);
    while (count < 4 && !PyObject_GetBuffer(arguments[count], views + count, PyBUF_SIMPLE))
        count++;
    if (count == 4)
        add_lists(views[0].buf, views[1].buf, views[1].len == views[0].len, views[2].buf,
                  (int64_t)(views[2].len / 8), views[3].buf);
    for (int i = 0; i < count; i++)
        PyBuffer_Release(views + i);
    return count == 4 ? none() : NULL;
}

static PyObject *py_are_finite(PyObject *module, PyObject *const *arguments, Py_ssize_t given) {
    int64_t a[3], numel = 0;
    int finite;
    (void)module;
    if (!read_integers(arguments, given, 3, a, "are_finite"))
        return NULL;
    const Piece *pieces = POINTER(const Piece, a[0]);
    for (int64_t i = 0; i < a[1]; i++) {
        if (!are_right(pieces[i].dtype, &pieces[i].numel, 1))
            return NULL;
        numel += pieces[i].numel;
    }
    MEASURE(numel, finite = are_finite(pieces, a[1], numel, a[2]));
    return PyBool_FromLong(finite);
}

static PyObject *py_capabilities(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyUnicode_FromString(target->name);
}

static PyObject *py_force(PyObject *module, PyObject *name) {
    (void)module;
    PyObject *text = PyUnicode_AsUTF8String(name);
    if (!text)
        return NULL;
    const Target *chosen = supported(PyBytes_AsString(text));
    Py_DecRef(text);
    if (!chosen)
        return PyErr_Format(PyExc_ValueError, "%R is not an instruction set of this machine", name);
    const char *before = target->name;
    target = chosen;
    return PyUnicode_FromString(before);
}

static PyMethodDef methods[] = {
    {"accumulate", (PyCFunction)(void (*)(void))py_accumulate, METH_FASTCALL,
     "accumulate(data, numel, dtype, row, histogram, sample, threads)"},
    {"take", (PyCFunction)(void (*)(void))py_take, METH_FASTCALL,
     "take(data, numel, dtype, aim, threads)"},
    {"replace", (PyCFunction)(void (*)(void))py_replace, METH_FASTCALL,
     "replace(data, numel, dtype, aim, threads): forgets what was measured before"},
    {"accumulate_channels", (PyCFunction)(void (*)(void))py_channels, METH_FASTCALL,
     "accumulate_channels(data, outer, channels, inner, dtype, rows, threads)"},
    {"accumulate_sum", (PyCFunction)(void (*)(void))py_sum, METH_FASTCALL,
     "accumulate_sum(data, outer, inner, dtype, sums)"},
    {"merge_rows", (PyCFunction)(void (*)(void))py_merge_rows, METH_FASTCALL,
     "merge_rows(rows_to, rows_from, num_rows): each row into the one at its place"},
    {"drain", (PyCFunction)(void (*)(void))py_drain, METH_FASTCALL,
     "drain(rows, histograms, num_rows, bins, counts, ends) -> length of the lists"},
    {"add_lists", (PyCFunction)(void (*)(void))py_add_lists, METH_FASTCALL,
     "add_lists(bins, counts, ends, addresses of histograms)"},
    {"agreement", torchtap_agreement, METH_VARARGS,
     "agreement(outputs, gradients, rows, columns, factor, classes) -> see targets.c"},
    {"are_finite", (PyCFunction)(void (*)(void))py_are_finite, METH_FASTCALL,
     "are_finite(table of data, numel and dtype, count, threads) -> bool"},
    {"capabilities", py_capabilities, METH_NOARGS, "The instruction set in use."},
    {"force", py_force, METH_O,
     "Use 'avx512', 'avx2' or 'baseline', or with '' the best; returns the one used before."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_kernel", "Statistics in one pass; see torchtap.stats.kernels.native.", -1,
    methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernel(void) {
    target = supported("");
    PyObject *module = PyModule_Create(&definition);
    if (module && (mind_forks() || torchtap_add_calls(module) || torchtap_add_root(module) ||
                   torchtap_add_tables(module) || torchtap_add_facts(module) ||
                   torchtap_add_saved(module) || torchtap_add_rows(module) ||
                   torchtap_add_resting() || torchtap_add_editing(module) ||
                   torchtap_add_bulk(module))) {
        Py_DecRef(module);
        return NULL;
    }
    return module;
}

#elif !defined(REAL)
/* ==================================================================== once per instruction set */

static void TFN(from_bfloat16)(const void *from, int64_t n, void *to);
static void TFN(from_float16)(const void *from, int64_t n, void *to);

#define REAL float
#define BITS uint32_t
#define COUNT int32_t
#define MANTISSA 23
#include "kernel.c"
#undef REAL
#undef BITS
#undef COUNT
#undef MANTISSA
#define REAL double
#define BITS uint64_t
#define COUNT int64_t
#define MANTISSA 52
#include "kernel.c"
#undef REAL
#undef BITS
#undef COUNT
#undef MANTISSA

static void TFN(from_float32)(const void *from, int64_t n, void *to) { memcpy(to, from, n * 4); }

static void TFN(from_float64)(const void *from, int64_t n, void *to) { memcpy(to, from, n * 8); }

static void TFN(from_bfloat16)(const void *from, int64_t n, void *to) {
    const uint16_t *x = from;
    uint32_t *y = to;
    SIMD()
    for (int64_t i = 0; i < n; i++)
        y[i] = (uint32_t)x[i] << 16;
}

/* Shifted into a float's place a half is 2^112 too small, subnormals included; multiplying is
   exact. What had the largest exponent was infinite or NaN and is given a float's. */
static inline uint32_t TFN(half_bits)(uint16_t half) {
    uint32_t bits = (uint32_t)(half & 0x7fff) << 13;
    float value;
    memcpy(&value, &bits, 4);
    value *= 0x1p112f;
    memcpy(&bits, &value, 4);
    bits |= (half & 0x7c00) == 0x7c00 ? 0x7f800000u : 0;
    return bits | (uint32_t)(half & 0x8000) << 16;
}

static void TFN(from_float16)(const void *from, int64_t n, void *to) {
    const uint16_t *x = from;
    uint32_t *y = to;
    int64_t i = 0;
#if LEVEL == 3
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps((float *)y + i, _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(x + i))));
#elif LEVEL == 2
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps((float *)y + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(x + i))));
#endif
    SIMD()
    for (int64_t j = i; j < n; j++)
        y[j] = TFN(half_bits)(x[j]);
}

#define CONVERT(name, type, real, value)                                                           \
    static void TFN(from_##name)(const void *from, int64_t n, void *to) {                          \
        const type *x = from;                                                                      \
        real *y = to;                                                                              \
        SIMD()                                                                                     \
        for (int64_t i = 0; i < n; i++)                                                            \
            y[i] = (real)(value);                                                                  \
    }
CONVERT(uint8, uint8_t, float, x[i])
CONVERT(int8, int8_t, float, x[i])
CONVERT(int16, int16_t, float, x[i])
CONVERT(int32, int32_t, double, x[i])
CONVERT(int64, int64_t, double, x[i])
CONVERT(bool, uint8_t, float, x[i] != 0)
#undef CONVERT

/* Where the elements of strata [first, first + n) lie, counted from `begin`: each at a hashed
   place of its own stratum, so that every element is as likely as every other. A stratum's place
   is computed without regard to `first` and `begin`: every call rounds it alike. */
static void TFN(positions)(int64_t first, int n, double width, uint32_t seed, int64_t begin,
                           int32_t *out) {
    SIMD()
    for (int i = 0; i < n; i++) {
        uint32_t hash = mixed(((uint32_t)first + (uint32_t)i) ^ seed);
        double within = (double)(int32_t)(hash >> 1) * 0x1p-31;
        double place = floor((((double)first + (double)i) + within) * width) - (double)begin;
        out[i] = (int32_t)(place < 2e9 ? place : 2e9);
    }
}

/* Lists the counts of `n` bins from `first` on that are not 0, and clears them. No branch asks
   whether there are any, for it could not be foreseen. */
static int TFN(list_counts)(uint32_t *restrict tables, int first, int n, uint16_t *restrict bins,
                            uint32_t *restrict counts) {
    int length = 0;
#if LEVEL == 3
    __m512i places = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (int i = 0; i < n; i += 16) {
        __mmask16 inside = n - i < 16 ? (1u << (n - i)) - 1 : 0xffff;
        __m512i sums = _mm512_setzero_si512();
        for (int table = 0; table < TABLES; table++) {
            uint32_t *from = tables + table * TABLE + first + i;
            sums = _mm512_add_epi32(sums, _mm512_maskz_loadu_epi32(inside, from));
            _mm512_mask_storeu_epi32(from, inside, _mm512_setzero_si512());
        }
        __mmask16 used = _mm512_test_epi32_mask(sums, sums);
        __m512i numbers = _mm512_add_epi32(places, _mm512_set1_epi32(first + i));
        numbers = _mm512_maskz_compress_epi32(used, numbers);
        _mm256_storeu_si256((void *)(bins + length), _mm512_cvtepi32_epi16(numbers));
        _mm512_storeu_si512(counts + length, _mm512_maskz_compress_epi32(used, sums));
        length += __builtin_popcount(used);
    }
#else
    uint32_t sums[LISTED], *from = tables + first;
    SIMD()
    for (int i = 0; i < n; i++) {
        sums[i] = from[i] + from[TABLE + i] + from[2 * TABLE + i] + from[3 * TABLE + i];
        from[i] = from[TABLE + i] = from[2 * TABLE + i] = from[3 * TABLE + i] = 0;
    }
    for (int i = 0; i < n; i++) {
        bins[length] = (uint16_t)(first + i);
        counts[length] = sums[i];
        length += sums[i] != 0;
    }
#endif
    return length;
}

/* The largest exponent, in its place among the bits. Four places are read at once: one alone would
   wait for the memory. */
#define TOP(bits, type)                                                                            \
    static type TFN(top##bits)(const type *x, int64_t n, type exponent) {                          \
        type top = 0;                                                                              \
        int64_t part = n / 4;                                                                      \
        SIMD(reduction(max : top))                                                                 \
        for (int64_t i = 0; i < part; i++) {                                                       \
            type a = x[i] & exponent, b = x[part + i] & exponent;                                  \
            type c = x[2 * part + i] & exponent, d = x[3 * part + i] & exponent;                   \
            a = a > b ? a : b;                                                                     \
            c = c > d ? c : d;                                                                     \
            a = a > c ? a : c;                                                                     \
            top = a > top ? a : top;                                                               \
        }                                                                                          \
        for (int64_t i = 4 * part; i < n; i++) {                                                   \
            type a = x[i] & exponent;                                                              \
            top = a > top ? a : top;                                                               \
        }                                                                                          \
        return top;                                                                                \
    }
TOP(16, int16_t)
TOP(32, int32_t)
TOP(64, int64_t)
#undef TOP

static const Target TFN(target) = {
    TEXT(TARGET),
    NAME3(measure, float, TARGET),
    NAME3(measure, double, TARGET),
#if LEVEL >= 2
    TFN(measure_half),
#else
    NULL,
#endif
    NAME3(tile, float, TARGET),
    NAME3(tile, double, TARGET),
    NAME3(minus_zeros, float, TARGET),
    NAME3(minus_zeros, double, TARGET),
    NAME3(add_rows, float, TARGET),
    NAME3(add_rows, double, TARGET),
    {
        TFN(from_float32), TFN(from_float64), TFN(from_bfloat16), TFN(from_float16),
        TFN(from_uint8), TFN(from_int8), TFN(from_int16), TFN(from_int32), TFN(from_int64),
        TFN(from_bool),
    },
    TFN(positions),
    TFN(list_counts),
    TFN(top16),
    TFN(top32),
    TFN(top64),
};

#else
/* ================================================ once per instruction set and kind of number */

#define SIGN ((BITS)1 << (sizeof(BITS) * 8 - 1))
#define INFINITE ((((BITS)1 << (sizeof(BITS) * 8 - 1 - MANTISSA)) - 1) << MANTISSA)

static inline BITS FN(bits)(REAL x) {
    BITS bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline REAL FN(number)(BITS bits) {
    REAL x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#if LEVEL < 3 || MANTISSA != 23
/* Sums in a plain loop: all of them, or those of the elements that fill no vector. */
NOINLINE static void FN(plain_sums)(const REAL *x, int64_t n, Sums *out) {
    double sum = 0, squares = 0, l1 = 0;
    REAL low = INFINITY, high = -INFINITY, least = INFINITY;
    SIMD(reduction(+ : sum, squares, l1) reduction(min : low, least) reduction(max : high))
    for (int64_t i = 0; i < n; i++) {
        REAL value = x[i], size = FN(number)(FN(bits)(value) & ~SIGN);
        double wide = value;
        sum += wide;
        squares += wide * wide;
        l1 += (double)size;
        low = value < low ? value : low;
        high = value > high ? value : high;
        least = size < least ? size : least;
    }
    *out = (Sums){sum, squares, l1, low, high, least};
}
#endif

#if LEVEL >= 2 && MANTISSA == 23
/* The bits of floats compare as integers: signed for the largest of the positive ones, unsigned for
   the lowest of the negative ones. Where there are none, the smallest magnitude, which is wanted
   too, is what is missing. */
static inline void TFN(set_extremes)(int32_t positive, uint32_t negative, float least, Sums *out) {
    out->least = least;
    out->high = positive < 0 ? -least : FN(number)((uint32_t)positive);
    out->low = negative & SIGN ? FN(number)(negative) : least;
}

static inline void TFN(from_half)(const uint16_t *x, int64_t n, int dtype, float *to) {
    (dtype == FLOAT16 ? TFN(from_float16) : TFN(from_bfloat16))(x, n, to);
}

/* The last halves, made as many as are taken at once: by zeros, which add nothing to sums, and by
   the first of them, which is no new extreme. */
static inline Rest TFN(rest)(const uint16_t *x, int n) {
    Rest rest = {{0}, {0}};
    for (int i = 0; i < 32; i++)
        rest.repeated[i] = x[i < n ? i : 0];
    memcpy(rest.elements, x, (size_t)n * 2);
    return rest;
}

/* The extremes of halves, whose bits compare as integers too: sixteen candidates of each. `least`
   is a magnitude's bits shifted left by one. */
ALWAYS_INLINE void TFN(set_sizes)(__m256i positive, __m256i negative, __m256i least, int dtype,
                                  Sums *out) {
    __m256i ones = _mm256_set1_epi16(-1);
    /* Turned around so that each is the smallest as unsigned, which one instruction finds. */
    __m256i all[3] = {_mm256_xor_si256(positive, _mm256_set1_epi16(INT16_MAX)),
                      _mm256_xor_si256(negative, ones), least};
    uint16_t found[3];
    float numbers[3];
    for (int i = 0; i < 3; i++) {
        __m128i upper = _mm256_extracti128_si256(all[i], 1);
        __m128i eight = _mm_min_epu16(_mm256_castsi256_si128(all[i]), upper);
        found[i] = (uint16_t)_mm_cvtsi128_si32(_mm_minpos_epu16(eight));
    }
    found[0] ^= INT16_MAX;
    found[1] ^= UINT16_MAX;
    found[2] >>= 1;
    TFN(from_half)(found, 3, dtype, numbers);
    out->least = numbers[2];
    out->high = found[0] & 0x8000 ? -numbers[2] : numbers[0];
    out->low = found[1] & 0x8000 ? numbers[1] : numbers[2];
}
#endif

#if LEVEL == 3 && MANTISSA == 23
/* The limit of this loop are the two pipes that add, compare and convert, so work is moved to the
   two that multiply, and to integer instructions, which run on all four:
     - |a| + |c| is the larger of |a + c| and |a - c|, and a + c is needed anyway;
     - sums are fused multiply-adds with 1;
     - extremes are integers (see set_extremes). */
typedef struct {
    __m512d sum[2], squares[4], l1[2], one;
    __m512i positive[2], negative[2];
    __m512 least[2];
} Lanes512;

enum { LARGER_SIZE = 11, SMALLER_SIZE = 10 }; /* of VRANGE: by magnitude, without the sign */

/* Read once for all three extremes, not once for each. */
static inline __m512 loaded(const float *x) {
    __m512 value = _mm512_loadu_ps(x);
    __asm__("" : "+v"(value));
    return value;
}

static inline __m512d widened(const float *x) { return _mm512_cvtps_pd(_mm256_loadu_ps(x)); }

static inline void take_extremes(Lanes512 *t, int i, __mmask16 mask, __m512 x) {
    __m512i bits = _mm512_castps_si512(x);
    t->positive[i] = _mm512_mask_max_epi32(t->positive[i], mask, t->positive[i], bits);
    t->negative[i] = _mm512_mask_max_epu32(t->negative[i], mask, t->negative[i], bits);
    t->least[i] = _mm512_mask_range_ps(t->least[i], mask, t->least[i], x, SMALLER_SIZE);
}

/* Four vectors of eight numbers; b and d go with a and c. */
static inline void take_sums(Lanes512 *t, __m512d a, __m512d b, __m512d c, __m512d d) {
    __m512d ac = _mm512_add_pd(a, c), bd = _mm512_add_pd(b, d);
    __m512d ac_size = _mm512_range_pd(ac, _mm512_sub_pd(a, c), LARGER_SIZE);
    __m512d bd_size = _mm512_range_pd(bd, _mm512_sub_pd(b, d), LARGER_SIZE);
    t->sum[0] = _mm512_fmadd_pd(ac, t->one, t->sum[0]);
    t->sum[1] = _mm512_fmadd_pd(bd, t->one, t->sum[1]);
    t->l1[0] = _mm512_fmadd_pd(ac_size, t->one, t->l1[0]);
    t->l1[1] = _mm512_fmadd_pd(bd_size, t->one, t->l1[1]);
    t->squares[0] = _mm512_fmadd_pd(a, a, t->squares[0]);
    t->squares[1] = _mm512_fmadd_pd(b, b, t->squares[1]);
    t->squares[2] = _mm512_fmadd_pd(c, c, t->squares[2]);
    t->squares[3] = _mm512_fmadd_pd(d, d, t->squares[3]);
}

static inline void take_tail(Lanes512 *t, const float *x, int64_t n) {
    __mmask16 mask[2] = {n < 16 ? (1u << n) - 1 : 0xffff, n > 16 ? (1u << (n - 16)) - 1 : 0};
    __m512d wide[4];
    for (int i = 0; i < 2; i++) {
        __m512 value = _mm512_maskz_loadu_ps(mask[i], x + 16 * i);
        __m512d high = _mm512_castps_pd(value);
        take_extremes(t, i, mask[i], value);
        wide[2 * i] = _mm512_cvtps_pd(_mm512_castps512_ps256(value));
        wide[2 * i + 1] = _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(high, 1)));
    }
    take_sums(t, wide[0], wide[1], wide[2], wide[3]);
}

static inline void TFN(start)(Lanes512 *t) {
    t->sum[0] = t->sum[1] = t->l1[0] = t->l1[1] = _mm512_setzero_pd();
    t->squares[0] = t->squares[1] = t->squares[2] = t->squares[3] = _mm512_setzero_pd();
    t->negative[0] = t->negative[1] = _mm512_setzero_si512();
    t->one = _mm512_set1_pd(1);
    __asm__("" : "+v"(t->one)); /* Else the compiler knows that multiplying by 1 is adding. */
    t->positive[0] = t->positive[1] = _mm512_set1_epi32(INT32_MIN);
    t->least[0] = t->least[1] = _mm512_set1_ps(INFINITY);
}

static inline void TFN(add_up)(const Lanes512 *t, Sums *out) {
    out->sum = _mm512_reduce_add_pd(_mm512_add_pd(t->sum[0], t->sum[1]));
    out->l1 = _mm512_reduce_add_pd(_mm512_add_pd(t->l1[0], t->l1[1]));
    out->squares = _mm512_reduce_add_pd(_mm512_add_pd(
        _mm512_add_pd(t->squares[0], t->squares[1]), _mm512_add_pd(t->squares[2], t->squares[3])));
}

static void FN(sums)(const float *x, int64_t n, Ahead ahead, Sums *out) {
    Lanes512 t;
    TFN(start)(&t);
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __builtin_prefetch(ahead.next, 1, 2);
        ahead.next += ahead.bytes;
        take_extremes(&t, 0, 0xffff, loaded(x + i));
        take_extremes(&t, 1, 0xffff, loaded(x + i + 16));
        take_sums(&t, widened(x + i), widened(x + i + 8), widened(x + i + 16), widened(x + i + 24));
    }
    if (i < n)
        take_tail(&t, x + i, n - i);
    float least = _mm512_reduce_min_ps(_mm512_min_ps(t.least[0], t.least[1]));
    int32_t positive = _mm512_reduce_max_epi32(_mm512_max_epi32(t.positive[0], t.positive[1]));
    uint32_t negative = _mm512_reduce_max_epu32(_mm512_max_epu32(t.negative[0], t.negative[1]));
    TFN(set_extremes)(positive, negative, least, out);
    TFN(add_up)(&t, out);
}

typedef struct {
    __m512i positive, negative, least;
} Halves512;

ALWAYS_INLINE void TFN(take_sizes)(Halves512 *t, __m512i bits) {
    t->positive = _mm512_max_epi16(t->positive, bits);
    t->negative = _mm512_max_epu16(t->negative, bits);
    t->least = _mm512_min_epu16(t->least, _mm512_add_epi16(bits, bits));
}

static inline __m256i ymm(__m512i x, int upper) {
    return upper ? _mm512_extracti64x4_epi64(x, 1) : _mm512_castsi512_si256(x);
}

/* In any order: of bfloat16 the two halves of each lane become the upper halves of floats. */
ALWAYS_INLINE void TFN(take_halves)(Lanes512 *t, const uint16_t *from, int dtype) {
    __m512 x[2];
    if (dtype == FLOAT16) {
        x[0] = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)from));
        x[1] = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(from + 16)));
    } else {
        __m512i bits = _mm512_loadu_si512(from), zero = _mm512_setzero_si512();
        x[0] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, bits));
        x[1] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, bits));
    }
    __m512d wide[4];
    for (int i = 0; i < 2; i++) {
        wide[2 * i] = _mm512_cvtps_pd(_mm512_castps512_ps256(x[i]));
        wide[2 * i + 1] = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x[i], 1));
    }
    take_sums(t, wide[0], wide[1], wide[2], wide[3]);
}

ALWAYS_INLINE void TFN(sums_of_halves)(const uint16_t *x, int64_t n, int dtype, Ahead ahead,
                                       Sums *out) {
    Lanes512 t;
    TFN(start)(&t);
    Halves512 sizes = {_mm512_set1_epi16(INT16_MIN), _mm512_setzero_si512(), _mm512_set1_epi16(-1)};
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __builtin_prefetch(ahead.next, 1, 2);
        ahead.next += ahead.bytes;
        TFN(take_sizes)(&sizes, _mm512_loadu_si512(x + i));
        TFN(take_halves)(&t, x + i, dtype);
    }
    if (i < n) {
        Rest rest = TFN(rest)(x + i, (int)(n - i));
        TFN(take_sizes)(&sizes, _mm512_loadu_si512(rest.repeated));
        TFN(take_halves)(&t, rest.elements, dtype);
    }
    TFN(set_sizes)(_mm256_max_epi16(ymm(sizes.positive, 0), ymm(sizes.positive, 1)),
                   _mm256_max_epu16(ymm(sizes.negative, 0), ymm(sizes.negative, 1)),
                   _mm256_min_epu16(ymm(sizes.least, 0), ymm(sizes.least, 1)), dtype, out);
    TFN(add_up)(&t, out);
}
#elif LEVEL == 2 && MANTISSA == 23
/* The limit of this loop is the number of instructions: an element is converted once, and extremes
   are integers (see set_extremes). `least` is a magnitude's bits shifted left by one. */
typedef struct {
    __m256d sum, squares[4], l1;
    __m256i positive, negative, least;
} Lanes256;

static inline __m256d sized(__m256d x) { return _mm256_andnot_pd(_mm256_set1_pd(-0.0), x); }

static inline void take_eight(Lanes256 *t, __m256d a, __m256d b, int i) {
    t->squares[i] = _mm256_fmadd_pd(a, a, t->squares[i]);
    t->squares[i + 1] = _mm256_fmadd_pd(b, b, t->squares[i + 1]);
    t->sum = _mm256_add_pd(t->sum, _mm256_add_pd(a, b));
    t->l1 = _mm256_add_pd(t->l1, _mm256_add_pd(sized(a), sized(b)));
}

static inline double sum_of_four(__m256d x) {
    __m128d two = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
    return _mm_cvtsd_f64(two) + _mm_cvtsd_f64(_mm_unpackhi_pd(two, two));
}

/* One of eight numbers of 32 bits. */
#define ONE_OF_EIGHT(name, pick)                                                                   \
    static inline int32_t name(__m256i x) {                                                        \
        __m128i four = pick(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));            \
        __m128i two = pick(four, _mm_shuffle_epi32(four, 0x4e));                                   \
        return _mm_cvtsi128_si32(pick(two, _mm_shuffle_epi32(two, 0xb1)));                         \
    }
ONE_OF_EIGHT(largest, _mm_max_epi32)
ONE_OF_EIGHT(largest_unsigned, _mm_max_epu32)
ONE_OF_EIGHT(smallest_unsigned, _mm_min_epu32)
#undef ONE_OF_EIGHT

static void TFN(add_sums)(Sums *to, const Sums *from) {
    to->sum += from->sum;
    to->squares += from->squares;
    to->l1 += from->l1;
    to->low = from->low < to->low ? from->low : to->low;
    to->high = from->high > to->high ? from->high : to->high;
    to->least = from->least < to->least ? from->least : to->least;
}

static inline void TFN(start)(Lanes256 *t) {
    t->sum = t->l1 = _mm256_setzero_pd();
    t->squares[0] = t->squares[1] = t->squares[2] = t->squares[3] = _mm256_setzero_pd();
    t->positive = _mm256_set1_epi32(INT32_MIN);
    t->negative = _mm256_setzero_si256();
    t->least = _mm256_set1_epi32((int32_t)(INFINITE << 1));
}

static inline void TFN(add_up)(const Lanes256 *t, Sums *out) {
    out->sum = sum_of_four(t->sum);
    out->l1 = sum_of_four(t->l1);
    out->squares = sum_of_four(_mm256_add_pd(_mm256_add_pd(t->squares[0], t->squares[1]),
                                             _mm256_add_pd(t->squares[2], t->squares[3])));
}

static inline void take_floats(Lanes256 *t, const float *x, int i) {
    __m256i bits = _mm256_loadu_si256((const void *)x);
    __asm__("" : "+x"(bits)); /* Read once for all three extremes. */
    t->positive = _mm256_max_epi32(t->positive, bits);
    t->negative = _mm256_max_epu32(t->negative, bits);
    t->least = _mm256_min_epu32(t->least, _mm256_add_epi32(bits, bits));
    take_eight(t, _mm256_cvtps_pd(_mm_loadu_ps(x)), _mm256_cvtps_pd(_mm_loadu_ps(x + 4)), i);
}

static void FN(sums)(const float *x, int64_t n, Ahead ahead, Sums *out) {
    Lanes256 t;
    TFN(start)(&t);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        take_floats(&t, x + i, 0);
        take_floats(&t, x + i + 8, 2);
        __builtin_prefetch(ahead.next, 1, 2);
        ahead.next += ahead.bytes / 2;
    }
    /* Else the compiler keeps them in memory all along, since it is about to take them apart. */
    __asm__("" : "+x"(t.positive), "+x"(t.negative), "+x"(t.least));
    TFN(set_extremes)(largest(t.positive), (uint32_t)largest_unsigned(t.negative),
                      FN(number)((uint32_t)smallest_unsigned(t.least) >> 1), out);
    TFN(add_up)(&t, out);
    if (i < n) {
        Sums rest;
        FN(plain_sums)(x + i, n - i, &rest);
        TFN(add_sums)(out, &rest);
    }
}

typedef struct {
    __m256i positive, negative, least;
} Halves256;

ALWAYS_INLINE void TFN(take_sizes)(Halves256 *t, __m256i bits) {
    t->positive = _mm256_max_epi16(t->positive, bits);
    t->negative = _mm256_max_epu16(t->negative, bits);
    t->least = _mm256_min_epu16(t->least, _mm256_add_epi16(bits, bits));
}

/* In any order: of bfloat16 the two halves of each lane become the upper halves of floats. */
ALWAYS_INLINE void TFN(take_halves)(Lanes256 *t, const uint16_t *from, int dtype) {
    __m256 x[2];
    if (dtype == FLOAT16) {
        x[0] = _mm256_cvtph_ps(_mm_loadu_si128((const void *)from));
        x[1] = _mm256_cvtph_ps(_mm_loadu_si128((const void *)(from + 8)));
    } else {
        __m256i bits = _mm256_loadu_si256((const void *)from), zero = _mm256_setzero_si256();
        x[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, bits));
        x[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, bits));
    }
    for (int i = 0; i < 2; i++)
        take_eight(t, _mm256_cvtps_pd(_mm256_castps256_ps128(x[i])),
                   _mm256_cvtps_pd(_mm256_extractf128_ps(x[i], 1)), 2 * i);
}

ALWAYS_INLINE void TFN(sums_of_halves)(const uint16_t *x, int64_t n, int dtype, Ahead ahead,
                                       Sums *out) {
    Lanes256 t;
    TFN(start)(&t);
    Halves256 sizes = {_mm256_set1_epi16(INT16_MIN), _mm256_setzero_si256(), _mm256_set1_epi16(-1)};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        TFN(take_sizes)(&sizes, _mm256_loadu_si256((const void *)(x + i)));
        TFN(take_halves)(&t, x + i, dtype);
        __builtin_prefetch(ahead.next, 1, 2);
        ahead.next += ahead.bytes / 2;
    }
    if (i < n) {
        Rest rest = TFN(rest)(x + i, (int)(n - i));
        TFN(take_sizes)(&sizes, _mm256_loadu_si256((const void *)rest.repeated));
        TFN(take_halves)(&t, rest.elements, dtype);
    }
    TFN(set_sizes)(sizes.positive, sizes.negative, sizes.least, dtype, out);
    TFN(add_up)(&t, out);
}
#else
static void FN(sums)(const REAL *x, int64_t n, Ahead ahead, Sums *out) {
    (void)ahead; /* This loop waits for the memory already. */
    FN(plain_sums)(x, n, out);
}
#endif

/* Sum of squared deviations from the mean, by way of a number near it. */
static double FN(spread)(const REAL *x, int64_t n, double center) {
    double around = 0, rest = 0;
    SIMD(reduction(+ : around, rest))
    for (int64_t i = 0; i < n; i++) {
        double delta = (double)x[i] - center;
        around += delta * delta;
        /* The mean of float32 in double is nearer than any two of them are to each other. */
        rest += sizeof(REAL) == 8 ? delta : 0;
    }
    return around - rest * rest / (double)n;
}

/* Zeros, subnormals and the smallest nonzero magnitude. */
static void FN(tiny)(const REAL *x, int64_t n, REAL limit, Block *block) {
    BITS below = FN(bits)(limit), least = ~(BITS)0;
    COUNT zeros = 0, small = 0;
    SIMD(reduction(+ : zeros) reduction(min : least))
    for (int64_t i = 0; i < n; i++) {
        BITS size = FN(bits)(x[i]) & ~SIGN, before = size - 1; /* One less: zero comes last. */
        zeros += size == 0;
        least = before < least ? before : least;
    }
    block->zeros = (double)zeros;
    block->least = zeros == n ? 0 : FN(number)(least + 1);
    if (zeros == n || least + 1 >= below)
        return;
    SIMD(reduction(+ : small))
    for (int64_t i = 0; i < n; i++)
        small += (FN(bits)(x[i]) & ~SIGN) < below;
    block->subnormal = (double)(small - zeros);
}

/* -0, which counts as 0 but has another bin. */
static int64_t FN(minus_zeros)(const REAL *x, int64_t n) {
    COUNT found = 0;
    SIMD(reduction(+ : found))
    for (int64_t i = 0; i < n; i++)
        found += FN(bits)(x[i]) == SIGN;
    return found;
}

/* Counts and extremes of a block that may hold anything. */
static void FN(census)(const REAL *x, int64_t n, REAL limit, Block *block) {
    COUNT nans = 0, posinf = 0, neginf = 0;
    REAL low = INFINITY, high = -INFINITY;
    SIMD(reduction(+ : nans, posinf, neginf) reduction(min : low) reduction(max : high))
    for (int64_t i = 0; i < n; i++) {
        BITS bits = FN(bits)(x[i]), size = bits & ~SIGN;
        nans += size > INFINITE;
        posinf += bits == INFINITE;
        neginf += bits == (SIGN | INFINITE);
        REAL down = size < INFINITE ? x[i] : (REAL)INFINITY;
        REAL up = size < INFINITE ? x[i] : (REAL)-INFINITY;
        low = down < low ? down : low;
        high = up > high ? up : high;
    }
    FN(tiny)(x, n, limit, block);
    block->nans = (double)nans;
    block->posinf = (double)posinf;
    block->neginf = (double)neginf;
    block->finite = (double)(n - nans - posinf - neginf);
    block->low = low;
    block->high = high;
}

/* A block with non-finite elements, or with float64 whose squares overflow. */
static void FN(careful)(const REAL *x, int64_t n, REAL limit, Block *block) {
    FN(census)(x, n, limit, block);
    if (block->finite == 0)
        return;
    /* The sum of numbers near the largest double overflows where their mean does not. */
    double scale = fmax(-block->low, block->high) > 1e290 ? 0x1p-64 : 1;
    double sum = 0, squares = 0, l1 = 0, around = 0, rest = 0;
    SIMD(reduction(+ : sum, squares, l1))
    for (int64_t i = 0; i < n; i++) {
        double value = (FN(bits)(x[i]) & ~SIGN) < INFINITE ? (double)x[i] : 0;
        sum += value * scale;
        squares += value * value;
        l1 += fabs(value);
    }
    double center = sum / block->finite / scale;
    SIMD(reduction(+ : around, rest))
    for (int64_t i = 0; i < n; i++) {
        double value = (FN(bits)(x[i]) & ~SIGN) < INFINITE ? (double)x[i] : center;
        double delta = value - center;
        around += delta * delta;
        rest += delta;
    }
    block->squares = squares;
    block->l1 = l1;
    block->mean = center + (fabs(rest) <= DBL_MAX ? rest / block->finite : 0);
    block->m2 = around <= DBL_MAX ? fmax(around - rest * rest / block->finite, 0) : INFINITY;
}

/* Mean of a block, and its sum of squared deviations as far as that does not cancel. */
static inline double FN(mean)(const Sums *sums, int64_t n) { return n ? sums->sum / (double)n : 0; }

static inline double FN(m2)(const Sums *sums, int64_t n) {
    return sums->squares - sums->sum * FN(mean)(sums, n);
}

/* Draws from the sums of a block what they tell; its elements are read again only where they do not suffice. */
static void FN(conclude)(const REAL *x, int64_t n, double limit, const Sums *sums, Block *block) {
    *block = (Block){.numel = (double)n, .low = INFINITY, .high = -INFINITY, .least = sums->least};
    if (!(sums->squares <= DBL_MAX)) {
        FN(careful)(x, n, (REAL)limit, block);
        return;
    }
    block->finite = (double)n;
    block->l1 = sums->l1;
    block->squares = sums->squares;
    block->low = sums->low;
    block->high = sums->high;
    block->mean = FN(mean)(sums, n);
    block->m2 = FN(m2)(sums, n);
    if (block->m2 * 1e4 < sums->squares)
        block->m2 = sums->low == sums->high ? 0 : fmax(FN(spread)(x, n, block->mean), 0);
    if (sums->least < limit)
        FN(tiny)(x, n, (REAL)limit, block);
}

static void FN(measure)(const REAL *x, int64_t n, double limit, Ahead ahead, Block *block) {
    Sums sums;
    FN(sums)(x, n, ahead, &sums);
    FN(conclude)(x, n, limit, &sums, block);
}

#if LEVEL >= 2 && MANTISSA == 23
/* The same as `tiny`, of halves where they lie: of at most BUFFER, which 16 bits count. */
static void TFN(tiny_halves)(const uint16_t *x, int64_t n, int dtype, Block *block) {
    uint16_t below = dtype == FLOAT16 ? 0x0400 : 0x0080, least = UINT16_MAX, zeros = 0, small = 0;
    SIMD(reduction(+ : zeros) reduction(min : least))
    for (int64_t i = 0; i < n; i++) {
        uint16_t size = x[i] & 0x7fff, before = (uint16_t)(size - 1);
        zeros += size == 0;
        least = before < least ? before : least;
    }
    float number;
    least++;
    TFN(from_half)(&least, 1, dtype, &number);
    block->zeros = zeros;
    block->least = zeros == n ? 0 : number;
    if (zeros == n || least >= below)
        return;
    SIMD(reduction(+ : small))
    for (int64_t i = 0; i < n; i++)
        small += (x[i] & 0x7fff) < below;
    block->subnormal = small - zeros;
}

/* A block of bfloat16 or float16. It is converted only where floats are to be read again. */
static void TFN(measure_half)(const void *from, int64_t n, int dtype, Ahead ahead, float *buffer,
                              Block *block) {
    Sums sums;
    if (dtype == FLOAT16)
        TFN(sums_of_halves)(from, n, FLOAT16, ahead, &sums);
    else
        TFN(sums_of_halves)(from, n, BFLOAT16, ahead, &sums);
    int suffices = sums.squares <= DBL_MAX && FN(m2)(&sums, n) * 1e4 >= sums.squares;
    if (!suffices)
        TFN(from_half)(from, n, dtype, buffer);
    FN(conclude)(buffer, n, suffices ? 0 : LIMIT[dtype], &sums, block);
    if (suffices && sums.least < LIMIT[dtype])
        TFN(tiny_halves)(from, n, dtype, block);
}
#endif

/* --------------------------------------------------------- columns: one lane for each of them */

typedef struct {
    double sum[TILE], squares[TILE], l1[TILE], m2[TILE];
    REAL low[TILE], high[TILE], least[TILE];
} FN(Lanes);

/* Several rows at once, so that a lane is read and written once for all of them. */
#define TAKE(k)                                                                                    \
    {                                                                                              \
        REAL value = x[c + (k) * stride], size = FN(number)(FN(bits)(value) & ~SIGN);              \
        double wide = value;                                                                       \
        sum += wide;                                                                               \
        squares += wide * wide;                                                                    \
        l1 += (double)size;                                                                        \
        low = value < low ? value : low;                                                           \
        high = value > high ? value : high;                                                        \
        least = size < least ? size : least;                                                       \
    }
#define ROWS(name, takes)                                                                          \
    static void FN(name)(const REAL *restrict x, int64_t stride, int width,                        \
                         FN(Lanes) *restrict lanes) {                                              \
        SIMD()                                                                                     \
        for (int c = 0; c < width; c++) {                                                          \
            double sum = lanes->sum[c], squares = lanes->squares[c], l1 = lanes->l1[c];            \
            REAL low = lanes->low[c], high = lanes->high[c], least = lanes->least[c];              \
            takes lanes->sum[c] = sum;                                                             \
            lanes->squares[c] = squares;                                                           \
            lanes->l1[c] = l1;                                                                     \
            lanes->low[c] = low;                                                                   \
            lanes->high[c] = high;                                                                 \
            lanes->least[c] = least;                                                               \
        }                                                                                          \
    }
ROWS(take_row, TAKE(0))
ROWS(take_rows, TAKE(0) TAKE(1) TAKE(2) TAKE(3) TAKE(4) TAKE(5) TAKE(6) TAKE(7))
#undef ROWS
#undef TAKE

static void FN(take_tile)(const REAL *x, int64_t rows, int64_t stride, int width,
                          FN(Lanes) *lanes) {
    memset(lanes, 0, sizeof *lanes);
    for (int c = 0; c < width; c++) {
        lanes->low[c] = lanes->least[c] = INFINITY;
        lanes->high[c] = -INFINITY;
    }
    int64_t r = 0;
    for (; r + 8 <= rows; r += 8)
        FN(take_rows)(x + r * stride, stride, width, lanes);
    for (; r < rows; r++)
        FN(take_row)(x + r * stride, stride, width, lanes);
}

/* `spread` for all columns of a tile. */
static void FN(spread_tile)(const REAL *restrict x, int64_t rows, int64_t stride, int width,
                            FN(Lanes) *restrict lanes) {
    double center[TILE], around[TILE] = {0}, rest[TILE] = {0};
    for (int c = 0; c < width; c++)
        center[c] = lanes->sum[c] / (double)rows;
    for (int64_t r = 0; r < rows; r++) {
        SIMD()
        for (int c = 0; c < width; c++) {
            double delta = (double)x[r * stride + c] - center[c];
            around[c] += delta * delta;
            rest[c] += delta;
        }
    }
    for (int c = 0; c < width; c++)
        lanes->m2[c] = fmax(around[c] - rest[c] * rest[c] / (double)rows, 0);
}

/* Zeros and subnormals of all columns of a tile. */
static void FN(tiny_tile)(const REAL *restrict x, int64_t rows, int64_t stride, int width,
                          REAL limit, COUNT *restrict zeros, COUNT *restrict small) {
    BITS below = FN(bits)(limit);
    for (int64_t r = 0; r < rows; r++) {
        SIMD()
        for (int c = 0; c < width; c++) {
            BITS size = FN(bits)(x[r * stride + c]) & ~SIGN;
            zeros[c] += size == 0;
            small[c] += size < below;
        }
    }
}

/* A column that holds something not finite, on its own. */
static void FN(measure_strided)(const REAL *x, int64_t rows, int64_t stride, double limit,
                                double *row) {
    REAL column[TILE_ROWS];
    Block block;
    for (int64_t r = 0; r < rows; r++)
        column[r] = x[r * stride];
    FN(measure)(column, rows, limit, NOTHING, &block);
    merge_block(row, &block);
}

static void FN(tile)(const REAL *x, int64_t rows, int64_t stride, int width, double limit,
                     double *channels, int64_t first, int64_t inner) {
    FN(Lanes) lanes;
    COUNT zeros[TILE] = {0}, small[TILE] = {0};
    int cancels = 0, any_small = 0;
    FN(take_tile)(x, rows, stride, width, &lanes);
    for (int c = 0; c < width; c++) {
        lanes.m2[c] = lanes.squares[c] - lanes.sum[c] * (lanes.sum[c] / (double)rows);
        cancels |= lanes.m2[c] * 1e4 < lanes.squares[c];
        any_small |= lanes.least[c] < limit;
    }
    if (cancels)
        FN(spread_tile)(x, rows, stride, width, &lanes);
    if (any_small)
        FN(tiny_tile)(x, rows, stride, width, (REAL)limit, zeros, small);
    for (int c = 0; c < width; c++) {
        double *row = channels + (first + c) / inner * ROW, n = (double)rows;
        if (!(lanes.squares[c] <= DBL_MAX)) {
            FN(measure_strided)(x + c, rows, stride, limit, row);
            continue;
        }
        Block block = {
            .numel = n, .finite = n, .mean = lanes.sum[c] / n, .m2 = lanes.m2[c],
            .l1 = lanes.l1[c], .squares = lanes.squares[c], .low = lanes.low[c],
            .high = lanes.high[c], .zeros = (double)zeros[c],
            .subnormal = (double)(small[c] - zeros[c]),
        };
        merge_block(row, &block);
    }
}

/* Adds all rows to `sums`. */
static void FN(add_rows)(const REAL *restrict x, int64_t rows, int64_t stride, int width,
                         double *restrict sums) {
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4, x += 4 * stride) {
        SIMD()
        for (int c = 0; c < width; c++)
            sums[c] += ((double)x[c] + (double)x[c + stride]) +
                       ((double)x[c + 2 * stride] + (double)x[c + 3 * stride]);
    }
    for (; r < rows; r++, x += stride) {
        SIMD()
        for (int c = 0; c < width; c++)
            sums[c] += (double)x[c];
    }
}

#undef SIGN
#undef INFINITE
#endif
