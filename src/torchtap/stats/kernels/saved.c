/* Work of tt.offload on each saved tensor: its layout is found, the graph gets an object for it,
 * and its bytes are written to a file and read back.
 *
 * For torchtap.saved.native_saved, which says what each has in Python as its twin. Whatever is not
 * the usual case is left to Python, before anything was noted. Both change the same objects, under
 * the lock of the engine. Nothing here knows of libtorch: see tensors.h.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>
#include <time.h>
#ifndef _WIN32
#include <unistd.h>
#endif

#include "calls.h"
#include "tensors.h"

enum { CPU = 1, CUDA = 2, COMPLEX = 5, MOST_DIMS = 64, MOST_LAYOUTS = 4096 };

static const Exchange *exchange;
static PyObject *tensor_type, *parameter_type, *is_of_transform, *is_neg, *layout_of, *num_casts,
    *views_and_casts, *current_task, *sequence_number, *detach, *untyped_storage, *storage_offset,
    *shared_view, *open_engines, *open_editors;
static PyObject **const BOUND[] = {
    &tensor_type,     &parameter_type,  &is_of_transform, &is_neg,       &layout_of,
    &num_casts,       &views_and_casts, &current_task,    &sequence_number, &detach,
    &untyped_storage, &storage_offset,  &shared_view,     &open_engines, &open_editors,
};
enum { NUM_BOUND = sizeof BOUND / sizeof *BOUND };

static PyObject *known; /* a dict: bytes -> layout */
static PyObject *freed, *zero, *none_yet;
#define NAMES(do)                                                                                  \
    do(append) do(drop) do(resident) do(evicting) do(evicted) do(prefetched) do(_base)             \
    do(grad_fn) do(__name__) do(_version) do(count) do(stack) do(tap) do(path) do(node)            \
    do(unfinished) do(popleft) do(extend) do(clear) do(used) do(name) do(data) do(nbytes)          \
    do(heap_nbytes) do(nothing) do(new) do(marks) do(_cdata) do(_window) do(_file) do(expect)      \
    do(is_done) do(put) do(join)
NAMES(DECLARE)

/* Holds a value in place of the one before. */
static void put(PyObject **place, PyObject *value) {
    PyObject *before = *place;
    Py_XINCREF(value);
    *place = value;
    Py_XDECREF(before);
}

/* --------------------------------------------------------------------------------------- layouts */

/* Whether PyTorch's function answers False about a tensor; -1 with an exception. */
static int denies(PyObject *function, PyObject *tensor) {
    PyObject *answer = PyObject_CallFunctionObjArgs(function, tensor, NULL);
    int is_false = answer ? answer == Py_False : -1;
    Py_XDECREF(answer);
    return is_false;
}

/* Looks at a tensor; 0 where DLPack has no word for it. */
static int look(PyObject *object, DLTensor *tensor) {
    if (!exchange->look(object, tensor))
        return tensor->data != NULL;
    PyErr_Clear(); /* Sparse, nested or quantised, or a dtype of PyTorch's own. */
    return 0;
}

static long long nbytes_of(const DLTensor *tensor) {
    long long bits = tensor->dtype.bits * tensor->dtype.lanes;
    for (int d = 0; d < tensor->ndim; d++)
        bits *= tensor->shape[d];
    return bits / 8;
}

/* Bytes that are equal for two tensors of one layout. NULL for a smaller one and for one that Python
   is to look at; with an exception only where one was raised. */
static PyObject *key_of(PyObject *object, long long min_nbytes) {
    DLTensor tensor;
    if ((PyObject *)Py_TYPE(object) != tensor_type && (PyObject *)Py_TYPE(object) != parameter_type)
        return NULL;
    if (!look(object, &tensor) || nbytes_of(&tensor) < min_nbytes ||
        denies(is_of_transform, object) != 1 || denies(is_neg, object) != 1)
        return NULL;
    /* A complex tensor may be a lazy conjugate. */
    if (tensor.dtype.code == COMPLEX || tensor.ndim > MOST_DIMS || !tensor.strides ||
        (tensor.device_type != CPU && tensor.device_type != CUDA))
        return NULL;
    int64_t key[3 + 2 * MOST_DIMS];
    size_t ndim = (size_t)tensor.ndim;
    key[0] = tensor.device_type;
    key[1] = tensor.device_id;
    key[2] = tensor.dtype.code | (int64_t)tensor.dtype.bits << 8 | (int64_t)tensor.dtype.lanes << 16;
    memcpy(key + 3, tensor.shape, ndim * sizeof *key);
    memcpy(key + 3 + ndim, tensor.strides, ndim * sizeof *key);
    return PyBytes_FromStringAndSize((const char *)key, (Py_ssize_t)((3 + 2 * ndim) * sizeof *key));
}

/* layout_of(tensor), which is asked once for each layout; for a reason, which is a str, each time. */
static PyObject *find_layout(PyObject *module, PyObject *tensor) {
    (void)module;
    if (!exchange)
        return PyErr_Format(PyExc_TypeError, "bind_saved was not called");
    PyObject *key = key_of(tensor, 0);
    if (!key && PyErr_Occurred())
        return NULL;
    PyObject *layout = key ? PyDict_GetItemWithError(known, key) : NULL;
    if (layout) {
        Py_INCREF(layout);
    } else if (!PyErr_Occurred()) {
        layout = PyObject_CallFunctionObjArgs(layout_of, tensor, NULL);
        if (layout && key && !PyUnicode_Check(layout)) {
            if (PyDict_Size(known) >= MOST_LAYOUTS)
                PyDict_Clear(known);
            if (PyDict_SetItem(known, key, layout))
                Py_CLEAR(layout);
        }
    }
    Py_XDECREF(key);
    return layout;
}

/* ----------------------------------------------------------------------------------------- blocks */

/* Twin of torchtap.saved.saved_block.SavedBlock and its BlockRef in one: weak references to it are dead
   before it ends, so that nothing brings it back. */
typedef struct {
    PyObject_HEAD
    PyObject *weak_references;
    PyObject *alias, *layout, *storage, *identity, *memory, *freed; /* handed in, in this order */
    PyObject *number, *state, *ticket, *tier, *handle, *stored_nbytes, *prefetched;
    char has_ended;
} Block;
#define GIVEN(do) do(alias) do(layout) do(storage) do(identity) do(memory) do(freed)
#define SET(do) do(number) do(state) do(ticket) do(tier) do(handle) do(stored_nbytes) do(prefetched)

static PyObject *block_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    (void)keywords;
    if (PyTuple_Size(arguments) != 6)
        return PyErr_Format(PyExc_TypeError, "SavedBlock expects 6 arguments");
    Block *self = PyObject_GC_New(Block, type);
    if (!self)
        return NULL;
    memset((char *)self + sizeof(PyObject), 0, sizeof *self - sizeof(PyObject));
    Py_ssize_t place = 0;
#define TAKE(member) Py_XINCREF(self->member = PyTuple_GetItem(arguments, place++));
    GIVEN(TAKE)
    Py_INCREF(self->number = none_yet);
    Py_INCREF(self->state = n_resident);
    Py_INCREF(self->stored_nbytes = zero);
    PyObject_GC_Track((PyObject *)self);
    return (PyObject *)self;
}

/* Leaves its facts for the ledger, and frees what it has in its tier. No lock is taken. */
static void block_finalize(PyObject *op) {
    Block *self = (Block *)op;
    PyObject *type, *error, *trace, *answer = NULL;
    if (self->has_ended)
        return;
    self->has_ended = 1;
    PyErr_Fetch(&type, &error, &trace);
    PyObject *tier = self->tier ? self->tier : Py_None;
    PyObject *facts = PyTuple_Pack(6, self->state, self->layout, self->identity, self->number, tier,
                                   self->stored_nbytes);
    put(&self->state, freed); /* From here on nobody takes it for one that lives. */
    if (facts)
        answer = PyObject_CallMethodObjArgs(self->freed, n_append, facts, NULL);
    if (!answer)
        PyErr_WriteUnraisable(NULL);
    Py_XDECREF(answer);
    Py_XDECREF(facts);
    if (tier != Py_None) {
        answer = PyObject_CallMethodObjArgs(tier, n_drop, self->handle, NULL);
        if (!answer)
            PyErr_WriteUnraisable(NULL);
        Py_XDECREF(answer);
    }
    PyErr_Restore(type, error, trace);
}

static int block_traverse(PyObject *op, visitproc visit, void *arg) {
    Block *self = (Block *)op;
    Py_VISIT(Py_TYPE(op));
#define SEE(member) Py_VISIT(self->member);
    GIVEN(SEE) SET(SEE)
    return 0;
}

static int block_clear(PyObject *op) {
    Block *self = (Block *)op;
#define FORGET(member) Py_CLEAR(self->member);
    GIVEN(FORGET) SET(FORGET)
    return 0;
}

static void block_dealloc(PyObject *op) {
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    if (((Block *)op)->weak_references)
        PyObject_ClearWeakRefs(op);
    block_finalize(op);
    block_clear(op);
    PyObject_GC_Del(op);
    Py_DECREF(type);
}

static PyObject *block_itself(PyObject *op, void *unused) {
    (void)unused;
    Py_INCREF(op);
    return op;
}

#define MEMBER(member) {#member, T_OBJECT, offsetof(Block, member), 0, NULL},
#define HANDED_IN(member) {#member, T_OBJECT, offsetof(Block, member), READONLY, NULL},
static PyMemberDef block_members[] = {
    MEMBER(alias) HANDED_IN(layout) HANDED_IN(storage) HANDED_IN(identity) HANDED_IN(memory) SET(MEMBER)
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Block, weak_references), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef block_getters[] = {
    {"block", block_itself, NULL, "Itself: it is its own BlockRef.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot block_slots[] = {
    {Py_tp_new, block_new},           {Py_tp_members, block_members},
    {Py_tp_getset, block_getters},    {Py_tp_finalize, block_finalize},
    {Py_tp_traverse, block_traverse}, {Py_tp_clear, block_clear},
    {Py_tp_dealloc, block_dealloc},   {0, NULL},
};
static PyType_Spec block_spec = {
    "torchtap.stats.kernels._kernel.SavedBlock", sizeof(Block), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, block_slots,
};

/* --------------------------------------------------------------------------------------- the file */

/* The memory of contiguous elements on the CPU, NULL where they are not `nbytes`. */
static char *memory_of(PyObject *elements, long long nbytes) {
    DLTensor tensor;
    if (!exchange || !look(elements, &tensor) || tensor.device_type != CPU)
        return NULL;
    int64_t bits = tensor.dtype.bits * tensor.dtype.lanes;
    for (int d = tensor.ndim - 1; d >= 0; d--) {
        if (tensor.shape[d] != 1 && tensor.strides[d] * tensor.dtype.bits * tensor.dtype.lanes != bits)
            return NULL;
        bits *= tensor.shape[d];
    }
    return bits == 8 * nbytes ? (char *)tensor.data + tensor.byte_offset : NULL;
}

#ifdef _WIN32
static int transfer(int file, char *data, long long nbytes, long long offset, int writes) {
    PyErr_SetString(PyExc_NotImplementedError, "no spill file on Windows");
    return -1;
}
#else
/* Writes or reads all: 1, or -1 with an exception. */
static int transfer(int file, char *data, long long nbytes, long long offset, int writes) {
    while (nbytes > 0) {
        ssize_t done;
        int error;
        PyThreadState *state = PyEval_SaveThread();
        done = writes ? pwrite(file, data, (size_t)nbytes, (off_t)offset)
                      : pread(file, data, (size_t)nbytes, (off_t)offset);
        error = errno;
        PyEval_RestoreThread(state);
        if (done > 0) {
            data += done, offset += done, nbytes -= done;
        } else if (done == 0 || error != EINTR) {
            errno = done ? error : EIO; /* The file ended early. */
            PyErr_SetFromErrno(PyExc_OSError);
            return -1;
        } else if (PyErr_CheckSignals()) {
            return -1;
        }
    }
    return 1;
}
#endif

/* --------------------------------------------------------------------------------- what is counted */

/* Twin of torchtap.saved.offload_report.ModuleCounters. */
typedef struct {
    PyObject_HEAD
    long long count, seen, packed, shared;
    PyObject *kept;
} Counters;
#define COUNTERS(do, op) do(op, Counters, kept)
LIFE(Counters, COUNTERS)

/* Twin of torchtap.saved.ledger.Totals. */
typedef struct {
    PyObject_HEAD
    long long resident, evicting, evicted, prefetched, peak, plain_peak, stored, fetched,
        num_prefetched, num_waited, num_freed;
    char is_step_over;
} Totals;
#define TOTALS(do, op)
LIFE(Totals, TOTALS)

static PyTypeObject *block_type, *counters_type, *totals_type, *way_type;

static PyObject *counters_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *kept;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "O:ModuleCounters", &kept))
        return NULL;
    MAKE(Counters, type)
    self->kept = held(kept);
    PyObject_GC_Track((PyObject *)self);
    return (PyObject *)self;
}

static PyObject *totals_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    (void)arguments, (void)keywords;
    MAKE(Totals, type)
    PyObject_GC_Track((PyObject *)self);
    return (PyObject *)self;
}

static void note_peaks(Totals *totals) {
    long long here = totals->resident + totals->evicting + totals->prefetched;
    if (here > totals->peak)
        totals->peak = here;
    if (here + totals->evicted > totals->plain_peak)
        totals->plain_peak = here + totals->evicted;
}

/* The bytes in a state, by its name. */
static long long *bytes_in(Totals *totals, PyObject *state) {
    return state == n_resident   ? &totals->resident
           : state == n_evicting ? &totals->evicting
           : state == n_evicted  ? &totals->evicted
                                 : &totals->prefetched;
}

/* Does as Ledger.move. */
static int change_state(Totals *totals, Block *block, PyObject *state) {
    long long nbytes = number_of(block->layout, n_nbytes);
    *bytes_in(totals, block->state) -= nbytes;
    *bytes_in(totals, state) += nbytes;
    put(&block->state, state);
    if (state == n_prefetched) /* The only one that adds to memory. */
        note_peaks(totals);
    return nbytes < 0 ? -1 : 0;
}

static int is_state(PyObject *name) {
    return name == n_resident || name == n_evicting || name == n_evicted || name == n_prefetched;
}

static PyObject *totals_move(PyObject *op, PyObject *const *arguments, Py_ssize_t count) {
    if (count != 2 || (PyTypeObject *)Py_TYPE(arguments[0]) != block_type || !is_state(arguments[1]))
        return PyErr_Format(PyExc_TypeError, "expected a SavedBlock and a state");
    return change_state((Totals *)op, (Block *)arguments[0], arguments[1]) ? NULL : none();
}

static PyObject *totals_add(PyObject *op, PyObject *const *arguments, Py_ssize_t count) {
    if (count != 2 || !is_state(arguments[0]))
        return PyErr_Format(PyExc_TypeError, "expected a state and bytes");
    *bytes_in((Totals *)op, arguments[0]) += PyLong_AsLongLong(arguments[1]);
    return PyErr_Occurred() ? NULL : none();
}

static PyObject *totals_note_peaks(PyObject *op, PyObject *unused) {
    (void)unused;
    note_peaks((Totals *)op);
    return none();
}

static PyMethodDef totals_methods[] = {
    {"move", (PyCFunction)(void (*)(void))totals_move, METH_FASTCALL,
     "move(block, to): put a block into another state"},
    {"add", (PyCFunction)(void (*)(void))totals_add, METH_FASTCALL, "add(state, bytes)"},
    {"note_peaks", totals_note_peaks, METH_NOARGS, "note how much there is, if never more was"},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef counters_members[] = {
    NUMBER(Counters, count),  NUMBER(Counters, seen),
    NUMBER(Counters, packed), NUMBER(Counters, shared),
    {"kept", T_OBJECT, offsetof(Counters, kept), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyMemberDef totals_members[] = {
    NUMBER(Totals, resident),       NUMBER(Totals, evicting),   NUMBER(Totals, evicted),
    NUMBER(Totals, prefetched),     NUMBER(Totals, peak),       NUMBER(Totals, plain_peak),
    NUMBER(Totals, stored),         NUMBER(Totals, fetched),    NUMBER(Totals, num_prefetched),
    NUMBER(Totals, num_waited),     NUMBER(Totals, num_freed),
    {"is_step_over", T_BOOL, offsetof(Totals, is_step_over), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
#define SPEC(name, full_name, type, ...)                                                           \
    static PyType_Slot name##_slots[] = {                                                          \
        {Py_tp_new, name##_new}, {Py_tp_members, name##_members}, LIFE_SLOTS(type),                \
        __VA_ARGS__ {0, NULL},                                                                     \
    };                                                                                             \
    static PyType_Spec name##_spec = {                                                             \
        "torchtap.stats.kernels._kernel." full_name, sizeof(type), 0,                              \
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, name##_slots,                                     \
    };
SPEC(counters, "ModuleCounters", Counters, )
SPEC(totals, "Totals", Totals, {Py_tp_methods, totals_methods}, )

/* -------------------------------------------------------------------------------- the way of a tensor */

/* The hot way through torchtap.saved.offload_engine: a plain tensor of a layout whose tier is known.
   Each function answers NotImplemented, before anything was noted, where Python is to do it. */
typedef struct {
    PyObject_HEAD
    PyObject *acquire, *release;          /* of the engine's lock */
    PyObject *forks;                      /* forks.forks */
    PyObject *thread, *operation;         /* ThreadState, _Operation */
    PyObject *modules, *totals, *moved, *waits; /* of the ledger */
    PyObject *known, *queue, *freed, *copying;  /* of the engine */
    PyObject *plans;                      /* layout -> a tuple, by the names below */
    PyObject *why_not;                    /* or None */
    PyObject *begin, *fail;               /* of Evictions */
    PyObject *add_prefetch, *forget, *take_and_start; /* of Prefetch */
    PyObject *count_freed;                      /* of Workers */
    PyObject *settle_waits;                     /* of Ledger */
    PyObject *num_forks;
    long long min_nbytes, max_nbytes, keep_last, num_unreported;
} Way;
#define HANDED(do, op)                                                                             \
    do(op, Way, acquire) do(op, Way, release) do(op, Way, forks)                                   \
    do(op, Way, thread) do(op, Way, operation) do(op, Way, modules)                                \
    do(op, Way, totals) do(op, Way, moved) do(op, Way, waits)                                      \
    do(op, Way, known) do(op, Way, queue) do(op, Way, freed)                                       \
    do(op, Way, copying) do(op, Way, plans) do(op, Way, why_not)                                   \
    do(op, Way, begin) do(op, Way, fail) do(op, Way, add_prefetch)                                 \
    do(op, Way, forget) do(op, Way, take_and_start) do(op, Way, count_freed)                       \
    do(op, Way, settle_waits)
#define WAY(do, op) HANDED(do, op) do(op, Way, num_forks)
LIFE(Way, WAY)
enum { NUM_HANDED = 22, REPORTED_FREED = 1 << 20, WINDOW = 1 << 20, MOST_WAITS = 256 };

/* tier_chain.Plan */
enum { TIER, CAN_PREFETCH, TAKES_ALL, FILE_OBJECT, FILE_NUMBER, SPARE };

static PyObject *way_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    (void)keywords;
    if (PyTuple_Size(arguments) != NUM_HANDED + 3)
        return PyErr_Format(PyExc_TypeError, "HotWay expects %d arguments", NUM_HANDED + 3);
    MAKE(Way, type)
    Py_ssize_t place = 0;
#define TAKE_HANDED(op, type, member) TAKE(member)
    HANDED(TAKE_HANDED, self)
    self->num_forks = PyObject_GetAttr(self->forks, n_count);
    self->min_nbytes = PyLong_AsLongLong(PyTuple_GetItem(arguments, place++));
    self->max_nbytes = PyLong_AsLongLong(PyTuple_GetItem(arguments, place++));
    self->keep_last = PyLong_AsLongLong(PyTuple_GetItem(arguments, place++));
    PyObject_GC_Track((PyObject *)self);
    if (PyErr_Occurred() || (PyTypeObject *)Py_TYPE(self->totals) != totals_type) {
        Py_DECREF(self);
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "expected Totals");
    }
    return (PyObject *)self;
}

static PyObject *for_python(void) {
    Py_INCREF(Py_NotImplemented);
    return Py_NotImplemented;
}

/* Calls and forgets the answer: -1 with an exception. */
static int tell(PyObject *function, PyObject *first) {
    PyObject *answer = PyObject_CallFunctionObjArgs(function, first, NULL);
    Py_XDECREF(answer);
    return answer ? 0 : -1;
}

static int tell_to(PyObject *object, PyObject *name, PyObject *first) {
    PyObject *answer = PyObject_CallMethodObjArgs(object, name, first, NULL);
    Py_XDECREF(answer);
    return answer ? 0 : -1;
}

/* object.name += by; -1 with an exception. */
static int add_to(PyObject *object, PyObject *name, long long by) {
    PyObject *more = PyLong_FromLongLong(number_of(object, name) + by);
    int failed = !more || PyErr_Occurred() || PyObject_SetAttr(object, name, more);
    Py_XDECREF(more);
    return failed ? -1 : 0;
}

static int is_overwritten(Block *block) {
    long long now = number_of(block->alias, n__version);
    return now != PyLong_AsLongLong(PyTuple_GetItem(block->identity, 1));
}

static int is_resident(PyObject *held) {
    return held && (PyTypeObject *)Py_TYPE(held) == block_type &&
           ((Block *)held)->state == n_resident;
}

static int has_forked(Way *self) {
    PyObject *now = PyObject_GetAttr(self->forks, n_count);
    int equal = now ? PyObject_RichCompareBool(now, self->num_forks, Py_EQ) : 0;
    Py_XDECREF(now);
    return equal != 1;
}

static int note_wait(Way *self, double seconds) {
    PyObject *wait = PyFloat_FromDouble(seconds);
    int failed = !wait || tell_to(self->waits, n_append, wait);
    Py_XDECREF(wait);
    return failed ? -1 : 0;
}

static double now(void) {
    struct timespec time;
#ifdef _WIN32
    timespec_get(&time, TIME_UTC);
#else
    clock_gettime(CLOCK_MONOTONIC, &time);
#endif
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Counts freed memory of the C library, now and then; Python trims the heap. */
static int note_freed(Way *self, long long nbytes) {
    self->num_unreported += nbytes;
    if (self->num_unreported < REPORTED_FREED)
        return 0;
    long long unreported = self->num_unreported;
    self->num_unreported = 0;
    PyObject *answer = PyObject_CallFunction(self->count_freed, "L", unreported);
    Py_XDECREF(answer);
    return answer ? 0 : -1;
}

/* Accounts for one freed block; see OffloadEngine._settle. */
static int settle_one(Way *self, PyObject *facts) {
    Totals *totals = (Totals *)self->totals;
    PyObject *state = PyTuple_GetItem(facts, 0), *layout = PyTuple_GetItem(facts, 1);
    PyObject *identity = PyTuple_GetItem(facts, 2), *tier = PyTuple_GetItem(facts, 4);
    if (tier != Py_None && add_to(tier, n_used, -PyLong_AsLongLong(PyTuple_GetItem(facts, 5))))
        return -1;
    *bytes_in(totals, state) -= number_of(layout, n_nbytes);
    if (state == n_prefetched && tell(self->forget, PyTuple_GetItem(facts, 3)))
        return -1;
    PyObject *reference = PyDict_GetItemWithError(self->known, identity);
    if (reference && PyWeakref_GetObject(reference) == Py_None)
        return PyDict_DelItem(self->known, identity);
    return PyErr_Occurred() ? -1 : 0;
}

/* Puts a block into its tier's books, and frees its memory; see Evictions._end. */
static int end_eviction(Way *self, Block *block) {
    Totals *totals = (Totals *)self->totals;
    long long nbytes = number_of(block->layout, n_nbytes);
    put(&block->ticket, NULL);
    if (is_overwritten(block)) /* It stays, and its unpack raises autograd's error. */
        return PyErr_Occurred() ? -1 : change_state(totals, block, n_resident);
    change_state(totals, block, n_evicted);
    totals->stored += PyLong_AsLongLong(block->stored_nbytes);
    PyObject *name = PyObject_GetAttr(block->tier, n_name);
    PyObject *before = name ? PyDict_GetItemWithError(self->moved, name) : NULL;
    PyObject *more = PyLong_FromLongLong((before ? PyLong_AsLongLong(before) : 0) + nbytes);
    PyObject *nothing = PyObject_GetAttr(block->layout, n_nothing);
    int failed = !name || !more || !nothing || PyDict_SetItem(self->moved, name, more) ||
                 PyObject_SetAttr(block->alias, n_data, nothing);
    Py_XDECREF(name);
    Py_XDECREF(more);
    Py_XDECREF(nothing);
    return failed || note_freed(self, number_of(block->layout, n_heap_nbytes)) ? -1 : 0;
}

/* Ends the copies that a device has made; see Evictions.settle. */
static int settle_copies(Way *self) {
    while (PyObject_IsTrue(self->copying) == 1) {
        PyObject *first = PySequence_GetItem(self->copying, 0), *done = NULL;
        Block *block = (Block *)first;
        if (first && (PyTypeObject *)Py_TYPE(first) == block_type && block->ticket)
            done = PyObject_CallMethodObjArgs(block->ticket, n_is_done, NULL);
        int is_done = done ? PyObject_IsTrue(done) : -1;
        if (is_done == 1)
            is_done = tell_to(self->copying, n_popleft, NULL) || end_eviction(self, block) ? -1 : 1;
        Py_XDECREF(first);
        Py_XDECREF(done);
        if (is_done != 1)
            return is_done;
    }
    return 0;
}

static int settle(Way *self) {
    while (PyObject_IsTrue(self->freed) == 1) {
        PyObject *facts = PyObject_CallMethodObjArgs(self->freed, n_popleft, NULL);
        int failed = !facts || settle_one(self, facts);
        Py_XDECREF(facts);
        if (failed)
            return -1;
    }
    if (PyObject_Size(self->waits) > MOST_WAITS && tell(self->settle_waits, NULL))
        return -1;
    return settle_copies(self);
}

/* ------------------------------------------------------------------------------------------ evict */

/* Says to Python that a tier did not take a block: -1 where the error goes on to the caller. */
static int fail(Way *self, Block *block, PyObject *tier) {
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace)
        PyException_SetTraceback(error, trace);
    PyObject *answer =
        PyObject_CallFunctionObjArgs(self->fail, (PyObject *)block, tier, error, NULL);
    int goes_on = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    if (goes_on == 1) {
        PyErr_Restore(type, error, trace);
        return -1;
    }
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return goes_on;
}

static void hold_in(Block *block, PyObject *tier, PyObject *handle, PyObject *stored_nbytes) {
    put(&block->handle, handle);
    put(&block->stored_nbytes, stored_nbytes);
    put(&block->tier, tier); /* Last: it says that there is something to drop. */
}

/* Writes a block to an extent of its file: 1, 0 where Python is to do it, -1 with an exception. */
static int write_block(Way *self, Block *block, PyObject *plan, PyObject *extent) {
    PyObject *tier = PyTuple_GetItem(plan, TIER), *file = PyTuple_GetItem(plan, FILE_OBJECT);
    long number = PyLong_AsLong(PyTuple_GetItem(plan, FILE_NUMBER));
    long long offset = PyLong_AsLongLong(PyTuple_GetItem(extent, 0));
    char *data = memory_of(block->alias, number_of(block->layout, n_nbytes));
    if (!data || PyErr_Occurred())
        return PyErr_Occurred() ? -1 : 0;
    PyObject *size = PyTuple_GetItem(extent, 1);
    if (add_to(tier, n_used, PyLong_AsLongLong(size)))
        return -1;
    if (transfer((int)number, data, number_of(block->layout, n_nbytes), offset, 1) < 0) {
        int failed = fail(self, block, tier);
        return PyList_Append(PyTuple_GetItem(plan, SPARE), extent) || failed ? -1 : 1;
    }
    PyObject *handle = PyTuple_Pack(2, file, extent);
    if (!handle)
        return -1;
    hold_in(block, tier, handle, size);
    Py_DECREF(handle);
    return end_eviction(self, block) ? -1 : 1;
}

/* Begins to copy a block to a tier that takes all: -1 with an exception. */
static int copy_block(Way *self, Block *block, PyObject *plan) {
    PyObject *tier = PyTuple_GetItem(plan, TIER);
    if (add_to(tier, n_used, number_of(block->layout, n_nbytes)))
        return -1;
    PyObject *answer =
        PyObject_CallMethodObjArgs(tier, n_put, block->alias, block->layout, NULL);
    if (!answer)
        return fail(self, block, tier);
    PyObject *ticket = PyTuple_GetItem(answer, 2);
    int failed = ticket ? 0 : -1;
    if (ticket) {
        hold_in(block, tier, PyTuple_GetItem(answer, 0), PyTuple_GetItem(answer, 1));
        if (ticket == Py_None) {
            failed = end_eviction(self, block);
        } else {
            put(&block->ticket, ticket);
            failed = change_state((Totals *)self->totals, block, n_evicting) ||
                     tell_to(self->copying, n_append, (PyObject *)block);
        }
    }
    Py_DECREF(answer);
    return failed ? -1 : 0;
}

/* Writes a block to the extent that was dropped last: -1 with an exception. */
static int write_to_spare(Way *self, Block *block, PyObject *plan, PyObject *spare) {
    Py_ssize_t last = PyList_Size(spare) - 1;
    PyObject *extent = PyList_GetItem(spare, last);
    Py_INCREF(extent);
    int has_written = PyList_SetSlice(spare, last, last + 1, NULL)
                          ? -1
                          : write_block(self, block, plan, extent);
    if (!has_written) /* Python finds an extent itself. */
        has_written = PyList_Append(spare, extent) || tell(self->begin, (PyObject *)block) ? -1 : 1;
    Py_DECREF(extent);
    return has_written < 0 ? -1 : 0;
}

/* Copies a block to its tier; see Evictions.begin. */
static int evict(Way *self, Block *block) {
    PyObject *plan = PyDict_GetItemWithError(self->plans, block->layout);
    PyObject *spare = plan ? PyTuple_GetItem(plan, SPARE) : Py_None;
    Py_ssize_t num_spare = spare && spare != Py_None ? PyList_Size(spare) : 0;
    int takes_all = plan && PyTuple_GetItem(plan, TAKES_ALL) == Py_True;
    if (PyErr_Occurred())
        return -1;
    if (!num_spare && !takes_all)
        return tell(self->begin, (PyObject *)block);
    double start = now();
    Py_INCREF(plan);
    int failed = takes_all ? copy_block(self, block, plan) : write_to_spare(self, block, plan, spare);
    Py_DECREF(plan);
    return failed || note_wait(self, now() - start) ? -1 : 0;
}

/* The thread's last operation has ended: see OffloadEngine._end_operation. */
static int end_operation(Way *self, PyObject *unfinished, long long allowed) {
    Totals *totals = (Totals *)self->totals;
    if (tell_to(self->queue, n_extend, unfinished) ||
        PyList_SetSlice(unfinished, 0, PyList_Size(unfinished), NULL))
        return -1;
    while (totals->resident > allowed && PyObject_IsTrue(self->queue) == 1) {
        PyObject *reference = PyObject_CallMethodObjArgs(self->queue, n_popleft, NULL);
        PyObject *held = reference ? PyWeakref_GetObject(reference) : NULL;
        int failed = !held;
        Py_XINCREF(held);
        if (is_resident(held))
            failed = evict(self, (Block *)held);
        Py_XDECREF(held);
        Py_XDECREF(reference);
        if (failed)
            return -1;
    }
    return 0;
}

/* ------------------------------------------------------------------------------------------- pack */

/* The layout of a plain tensor that is to be moved, NULL where Python is to look: with an exception
   only where one was raised. Both are references of the caller's. */
static PyObject *layout_to_move(Way *self, PyObject *tensor, PyObject **plan) {
    PyObject *key = (PyObject *)Py_TYPE(tensor) == tensor_type ? key_of(tensor, self->min_nbytes) : NULL;
    PyObject *layout = key ? PyDict_GetItemWithError(known, key) : NULL;
    Py_XDECREF(key);
    *plan = layout ? PyDict_GetItemWithError(self->plans, layout) : NULL;
    if (!*plan)
        return NULL;
    Py_INCREF(*plan);
    Py_INCREF(layout);
    return layout;
}

/* Whether a tensor may be a parameter, or made of one by views and casts: num_casts tells. */
static int may_stay(Way *self, PyObject *tensor) {
    PyObject *base = PyObject_GetAttr(tensor, n__base);
    PyObject *node = base ? PyObject_GetAttr(tensor, n_grad_fn) : NULL;
    PyObject *name = NULL, *reason = NULL;
    int may = node ? base != Py_None : -1;
    if (!may && node != Py_None) {
        name = PyObject_GetAttr((PyObject *)Py_TYPE(node), n___name__);
        may = name ? PySet_Contains(views_and_casts, name) : -1;
    }
    if (may > 0) {
        reason = PyObject_CallFunctionObjArgs(num_casts, tensor, NULL);
        may = reason ? reason != Py_None : -1;
        Py_XDECREF(reason);
    }
    if (!may && self->why_not != Py_None) {
        reason = PyObject_CallFunctionObjArgs(self->why_not, tensor, NULL);
        may = reason ? reason != Py_None : -1;
        Py_XDECREF(reason);
    }
    Py_XDECREF(base);
    Py_XDECREF(node);
    Py_XDECREF(name);
    return may;
}

/* The counters of the module that runs in this thread; NULL where there are none yet. */
static Counters *counters_of(Way *self) {
    PyObject *stack = PyObject_GetAttr(self->thread, n_stack), *path = NULL;
    Py_ssize_t depth = stack ? PyObject_Size(stack) : -1;
    if (depth > 0) {
        PyObject *call = PySequence_GetItem(stack, depth - 1);
        PyObject *tap = call ? PyObject_GetAttr(call, n_tap) : NULL;
        path = tap ? PyObject_GetAttr(tap, n_path) : NULL;
        Py_XDECREF(call);
        Py_XDECREF(tap);
    } else if (!depth) {
        path = PyUnicode_FromStringAndSize("", 0);
    }
    PyObject *found = path ? held(PyDict_GetItemWithError(self->modules, path)) : NULL;
    Py_XDECREF(stack);
    Py_XDECREF(path);
    if (found && (PyTypeObject *)Py_TYPE(found) != counters_type)
        Py_CLEAR(found);
    return (Counters *)found;
}

static int begin_operation(Way *self, long long coming) {
    PyObject *number = PyObject_CallFunctionObjArgs(sequence_number, NULL);
    PyObject *last = number ? PyObject_GetAttr(self->operation, n_node) : NULL;
    int failed = last ? 0 : -1;
    if (last && !PyObject_RichCompareBool(number, last, Py_EQ)) {
        PyObject *unfinished = PyObject_GetAttr(self->operation, n_unfinished);
        failed = !unfinished || PyObject_SetAttr(self->operation, n_node, number) ||
                 end_operation(self, unfinished, self->keep_last - coming);
        Py_XDECREF(unfinished);
    }
    Py_XDECREF(number);
    Py_XDECREF(last);
    return failed ? -1 : 0;
}

/* A new block for a tensor; see the end of OffloadEngine._take. */
static PyObject *take(Way *self, PyObject *tensor, PyObject *layout, PyObject *plan,
                      PyObject *storage, PyObject *identity, long long nbytes) {
    Totals *totals = (Totals *)self->totals;
    PyObject *block = NULL, *reference = NULL, *unfinished = NULL, *answer = NULL;
    PyObject *memory = PyObject_GetAttr(storage, n__cdata);
    PyObject *weak = PyWeakref_NewRef(storage, NULL);
    PyObject *alias = PyObject_CallFunctionObjArgs(detach, tensor, NULL);
    if (memory && weak && alias)
        block = PyObject_CallFunctionObjArgs((PyObject *)block_type, alias, layout, weak, identity,
                                             memory, self->freed, NULL);
    Py_XDECREF(memory);
    Py_XDECREF(weak);
    Py_XDECREF(alias);
    if (!block)
        return NULL;
    /* First: whatever ends the block takes its bytes off again. */
    totals->resident += nbytes;
    note_peaks(totals);
    reference = PyWeakref_NewRef(block, NULL);
    unfinished = PyObject_GetAttr(self->operation, n_unfinished);
    if (!reference || !unfinished || PyDict_SetItem(self->known, identity, reference))
        goto end;
    if (PyTuple_GetItem(plan, CAN_PREFETCH) == Py_True) {
        PyObject *done = PyObject_CallFunctionObjArgs(self->add_prefetch, block, reference, NULL);
        Py_XDECREF(done);
        if (!done)
            goto end;
    }
    if (PyList_Append(unfinished, reference))
        goto end;
    Py_INCREF(answer = block);
end:
    Py_XDECREF(reference);
    Py_XDECREF(unfinished);
    Py_DECREF(block);
    return answer;
}

/* Evicting is behind, and so many bytes more do not fit. */
static int is_full(Way *self, long long coming) {
    const Totals *totals = (Totals *)self->totals;
    long long here = totals->resident + totals->evicting + totals->prefetched;
    return totals->evicting && here + coming > self->max_nbytes;
}

/* Makes a torchtap.saved.saved_block.Identity; NULL with an exception. */
static PyObject *identity_of(PyObject *tensor, PyObject *storage, PyObject *layout) {
    PyObject *address = PyLong_FromVoidPtr(storage), *identity = NULL;
    PyObject *version = address ? PyObject_GetAttr(tensor, n__version) : NULL;
    PyObject *offset = version ? PyObject_CallFunctionObjArgs(storage_offset, tensor, NULL) : NULL;
    PyObject *marks = offset ? PyObject_GetAttr(layout, n_marks) : NULL;
    if (marks)
        identity = PyTuple_Pack(4, address, version, offset, marks);
    Py_XDECREF(marks);
    Py_XDECREF(offset);
    Py_XDECREF(version);
    Py_XDECREF(address);
    return identity;
}

/* Under the lock: the block that the graph is to hold, or a view of one that is there. */
static PyObject *take_or_share(Way *self, PyObject *tensor, PyObject *layout, PyObject *plan,
                               Counters *counters) {
    long long nbytes = number_of(layout, n_nbytes);
    if (((Totals *)self->totals)->is_step_over)
        return for_python();
    if (settle(self))
        return NULL;
    PyObject *storage = PyObject_CallFunctionObjArgs(untyped_storage, tensor, NULL);
    PyObject *identity = storage ? identity_of(tensor, storage, layout) : NULL, *answer = NULL;
    PyObject *reference = identity ? PyDict_GetItemWithError(self->known, identity) : NULL;
    PyObject *held = reference ? PyWeakref_GetObject(reference) : NULL;
    Py_XINCREF(held);
    if (is_resident(held) && PyWeakref_GetObject(((Block *)held)->storage) == storage) {
        answer = PyObject_CallFunctionObjArgs(shared_view, held, layout, NULL);
        counters->shared += answer ? nbytes : 0;
    } else if (identity && !PyErr_Occurred() && !begin_operation(self, nbytes)) {
        /* Waiting, and what is said where nothing can be waited for, are Python's. */
        answer = is_full(self, nbytes)
                     ? for_python()
                     : take(self, tensor, layout, plan, storage, identity, nbytes);
        counters->packed += answer && answer != Py_NotImplemented ? nbytes : 0;
    }
    if (answer && answer != Py_NotImplemented) {
        counters->count++;
        counters->seen += nbytes;
    }
    Py_XDECREF(held);
    Py_XDECREF(storage);
    Py_XDECREF(identity);
    return answer;
}

/* Releases the lock of the engine, and hands on what was made under it. */
static PyObject *released(Way *self, PyObject *answer) {
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    if (tell(self->release, NULL))
        Py_CLEAR(answer);
    if (type)
        PyErr_Restore(type, error, trace);
    return answer;
}

/* Whether this thread is inside a backward, or a parent's engine is in a child; -1: an exception. */
static int is_elsewhere(Way *self) {
    PyObject *task = PyObject_CallFunctionObjArgs(current_task, NULL);
    long number = task ? PyLong_AsLong(task) : -1;
    Py_XDECREF(task);
    return PyErr_Occurred() ? -1 : number != -1 || has_forked(self);
}

static PyObject *pack_with(Way *self, PyObject *tensor, PyObject *layout, PyObject *plan) {
    Counters *counters = is_elsewhere(self) ? NULL : counters_of(self);
    PyObject *packed = NULL;
    if (!counters || may_stay(self, tensor))
        packed = PyErr_Occurred() ? NULL : for_python();
    else if (!tell(self->acquire, NULL))
        packed = released(self, take_or_share(self, tensor, layout, plan, counters));
    Py_XDECREF((PyObject *)counters);
    return packed;
}

static PyObject *way_pack(PyObject *op, PyObject *tensor) {
    PyObject *plan, *layout = layout_to_move((Way *)op, tensor, &plan);
    if (!layout)
        return PyErr_Occurred() ? NULL : for_python();
    PyObject *packed = pack_with((Way *)op, tensor, layout, plan);
    Py_DECREF(plan);
    Py_DECREF(layout);
    return packed;
}

/* ----------------------------------------------------------------------------------------- unpack */

/* Counts a block that comes back: -1 with an exception. */
static int note_fetch(Way *self, Block *block) {
    ((Totals *)self->totals)->fetched += number_of(block->layout, n_nbytes);
    return note_freed(self, number_of(block->layout, n_heap_nbytes));
}

/* Under the lock: the tensor of a resident block, a tuple of a prefetched one and of a ticket, None
   of one that is to be read, else NotImplemented. */
static PyObject *look_up(Way *self, Block *block) {
    Totals *totals = (Totals *)self->totals;
    totals->is_step_over = 1;
    if (settle(self))
        return NULL;
    int is_plain = PyDict_Contains(self->plans, block->layout), may_read = block->number == none_yet;
    if (is_plain != 1 || is_overwritten(block) || PyErr_Occurred())
        return PyErr_Occurred() ? NULL : for_python();
    if (block->state == n_resident && may_read)
        return PyObject_CallFunctionObjArgs(detach, block->alias, NULL);
    if (block->state == n_prefetched && block->prefetched && PyTuple_Check(block->prefetched)) {
        totals->num_prefetched++;
        return note_fetch(self, block) ? NULL
                   : PyObject_CallFunctionObjArgs(self->take_and_start, (PyObject *)block, NULL);
    }
    PyObject *plan = PyDict_GetItemWithError(self->plans, block->layout);
    if (block->state != n_evicted || !may_read || !plan ||
        PyTuple_GetItem(plan, TIER) != block->tier || PyTuple_GetItem(plan, SPARE) == Py_None)
        return PyErr_Occurred() ? NULL : for_python();
    totals->num_waited++;
    return note_fetch(self, block) ? NULL : none();
}

/* Reads an evicted block; see DiskTier.get. */
static PyObject *read_block(Block *block) {
    PyObject *file = PyTuple_GetItem(block->handle, 0), *extent = PyTuple_GetItem(block->handle, 1);
    long long offset = PyLong_AsLongLong(PyTuple_GetItem(extent, 0));
    long long nbytes = number_of(block->layout, n_nbytes);
    if (number_of(file, n__window) != offset / WINDOW && tell_to(file, n_expect, extent))
        return NULL;
    long long number = number_of(file, n__file);
    PyObject *elements = PyObject_CallMethodObjArgs(block->layout, n_new, NULL);
    char *data = elements ? memory_of(elements, nbytes) : NULL;
    if (data && !PyErr_Occurred() && transfer((int)number, data, nbytes, offset, 0) < 0)
        Py_CLEAR(elements);
    else if (elements && !data && !PyErr_Occurred())
        PyErr_SetString(PyExc_SystemError, "new elements cannot be read");
    if (PyErr_Occurred())
        Py_CLEAR(elements);
    return elements;
}

/* The elements of what was prefetched; the stream that computes waits for its ticket. */
static PyObject *arrived(PyObject *found) {
    PyObject *elements = PyTuple_GetItem(found, 0), *ticket = PyTuple_GetItem(found, 1);
    if (!ticket || (ticket != Py_None && tell_to(ticket, n_join, NULL)))
        return NULL;
    Py_INCREF(elements);
    return elements;
}

static PyObject *way_unpack(PyObject *op, PyObject *packed) {
    Way *self = (Way *)op;
    Block *block = (Block *)packed;
    if ((PyTypeObject *)Py_TYPE(packed) != block_type || PySet_Size(open_engines) ||
        PySet_Size(open_editors) || has_forked(self))
        return PyErr_Occurred() ? NULL : for_python();
    double start = now();
    PyObject *found = tell(self->acquire, NULL) ? NULL : released(self, look_up(self, block));
    if (!found || (found != Py_None && !PyTuple_Check(found)))
        return found;
    PyObject *tensor = found == Py_None ? read_block(block) : arrived(found);
    Py_DECREF(found);
    if (tensor && note_wait(self, now() - start))
        Py_CLEAR(tensor);
    return tensor;
}

static PyMemberDef way_members[] = {{NULL, 0, 0, 0, NULL}};
static PyMethodDef way_methods[] = {
    {"pack", way_pack, METH_O, "pack(tensor) -> what the graph is to hold, or NotImplemented"},
    {"unpack", way_unpack, METH_O, "unpack(packed) -> its tensor, or NotImplemented"},
    {NULL, NULL, 0, NULL},
};
SPEC(way, "HotWay", Way, {Py_tp_methods, way_methods}, )

/* -------------------------------------------------------------------------------- the Python door */

/* bind_saved(exchange, ...) -> whether tensors can be read by the table that their class has. */
static PyObject *bind_saved(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    (void)module;
    if (count != 1 + NUM_BOUND)
        return PyErr_Format(PyExc_TypeError, "expected %d arguments", 1 + NUM_BOUND);
    const Exchange *found = PyCapsule_GetPointer(arguments[0], "dlpack_exchange_api");
    if (!found)
        return NULL;
    if (found->major != 1 || !found->look)
        return boolean(0);
    for (Py_ssize_t i = 0; i < NUM_BOUND; i++) {
        PyObject *before = *BOUND[i];
        Py_INCREF(*BOUND[i] = arguments[1 + i]);
        Py_XDECREF(before);
    }
    exchange = found;
    return boolean(1);
}

#define FAST(function) (PyCFunction)(void (*)(void))function, METH_FASTCALL
static PyMethodDef functions[] = {
    {"bind_saved", FAST(bind_saved),
     "bind_saved(exchange, ...) -> whether it is known; see native.takes_saved"},
    {"find_layout", find_layout, METH_O, "find_layout(tensor) -> layout_of(tensor)"},
    {NULL, NULL, 0, NULL},
};

int torchtap_add_saved(PyObject *module) {
    if (add_type(module, &block_spec, &block_type) ||
        add_type(module, &counters_spec, &counters_type) ||
        add_type(module, &totals_spec, &totals_type) || add_type(module, &way_spec, &way_type))
        return -1;
    NAMES(INTERN)
    known = PyDict_New();
    freed = PyUnicode_InternFromString("freed");
    zero = PyLong_FromLong(0);
    none_yet = PyLong_FromLong(-1);
    if (!known || !freed || !zero || !none_yet)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
