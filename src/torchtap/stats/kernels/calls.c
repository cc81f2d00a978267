/* The plain case of a watched call, for torchtap.capture.plain_calls and torchtap.stats.meter.
 *
 * A module that returns one plain tensor in plain training is nearly every call of a training. Its
 * hook is `leave`, and `Gradients.deliver` or `Arrival.add` are the hook on its tensor. Whatever is
 * not plain goes to the hook of Python that the call was made with, before anything was noted: the
 * two never share a call. Both keep their tallies in the same objects (SiteState, Meter, Clock).
 *
 * Nothing here knows of libtorch. A tensor is read through the table of C functions that the class
 * carries (__dlpack_c_exchange_api__); the rest is asked by functions that Python hands in (bind).
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "calls.h"
#include "tensors.h"

enum { MOST_DIMS = 64, FEW_DIMS = 8, NO_SHAPE = -1, CPU = 1, LARGE = 1 << 21, UNVERSIONED = -1 };
enum { MOST_ENTERED = 1 << 12 };

/* By the codes of native.DTYPES. */
static const DLDataType DTYPES[] = {
    {2, 32, 1}, {2, 64, 1}, {4, 16, 1}, {2, 16, 1}, {1, 8, 1},
    {0, 8, 1},  {0, 16, 1}, {0, 32, 1}, {0, 64, 1}, {6, 8, 1},
};

/* ---------------------------------------------------------------------- what Python hands in (bind) */

static const Exchange *exchange;
static PyTypeObject *tensor_type, *parameter_type;
static PyObject *is_neg, *num_threads;
static PyObject **const OF_TENSORS[] = {
    (PyObject **)&tensor_type, (PyObject **)&parameter_type, &is_neg, &num_threads,
};
static PyObject *current_task, *top_saved_hooks, *transform_running, *tracing_state, *sequence_number,
    *detach, *grad_hook, *new_table, *no_meter, *record_type, *forward, *is_legacy_batched,
    *is_of_transform;
static PyObject **const OF_CALLS[] = {
    &current_task, &top_saved_hooks, &transform_running, &tracing_state, &sequence_number, &detach,
    &grad_hook, &new_table, &no_meter, &record_type, &forward, &is_legacy_batched, &is_of_transform,
};
#define LENGTH(array) ((Py_ssize_t)(sizeof(array) / sizeof *(array)))

#define NAMES(name)                                                                                \
    name(grad_fn) name(_backward_hooks) name(_register_hook_dict) name(_base) name(_is_view) name(is_leaf)        \
    name(_version) name(recording) name(step) name(stack) name(views) name(add) name(gradients)    \
    name(has_run) name(has_trained) name(deliver) name(func) name(__self__)                        \
    name(requires_grad) name(given) name(number) name(is_in_graph) name(_is_state_taken)           \
    name(_has_trained) name(phase) name(grad_output) name(note_first_call) name(foreign)          \
    name(untyped_storage) name(_cdata) name(clone) name(data) name(witnesses) name(nothing_like)   \
    name(policy) name(owner) name(order) name(is_inference) name(nbytes) name(storage_offset)
NAMES(DECLARE)

static PyTypeObject *clock_type, *meter_type, *state_type, *gradients_type, *arrival_type,
    *followed_type, *steps_type, *numbers_type, *leaving_type, *graph_part_type;

/* Whether an answer is True; takes it over. -1 where there is none. */
static int is_true(PyObject *answer) {
    int is = answer ? answer == Py_True : -1;
    Py_XDECREF(answer);
    return is;
}

static int is_none(PyObject *answer) {
    int is = answer ? answer == Py_None : -1;
    Py_XDECREF(answer);
    return is;
}

static PyObject *ask(PyObject *function, PyObject *of) {
    return PyObject_CallFunctionObjArgs(function, of, NULL);
}

static int64_t version_of(PyObject *tensor) {
    PyObject *version = PyObject_GetAttr(tensor, n__version);
    int64_t value = version ? PyLong_AsLongLong(version) : -1;
    Py_XDECREF(version);
    return value;
}

/* ------------------------------------------------------------------------------------------- Clock */

typedef struct {
    PyObject_HEAD
    PyObject *lock, *acquire, *release;
    PyObject *begin; /* begin(place, tensor): has a meter measure tensors like its first one */
    PyObject *table; /* of rows.c: meters begin here, where their first tensor is plain */
    long long step, sample;
    char has_measured;
} Clock;
#define CLOCK(do, op)                                                                              \
    do(op, Clock, lock) do(op, Clock, acquire) do(op, Clock, release) do(op, Clock, begin)   \
    do(op, Clock, table)
LIFE(Clock, CLOCK)

static PyObject *clock_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *lock;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "O:Clock", &lock))
        return NULL;
    PyObject *acquire = PyObject_GetAttrString(lock, "acquire");
    PyObject *release = acquire ? PyObject_GetAttrString(lock, "release") : NULL;
    if (!release) {
        Py_XDECREF(acquire);
        return NULL;
    }
    MAKE(Clock, type)
    self->lock = held(lock);
    self->acquire = acquire;
    self->release = release;
    PyObject_GC_Track((PyObject *)self);
    return (PyObject *)self;
}

static PyMemberDef clock_members[] = {
    NUMBER(Clock, step), FLAG(Clock, has_measured), FIXED(Clock, lock),
    OBJECT(Clock, begin), OBJECT(Clock, table),     NUMBER(Clock, sample),
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot clock_slots[] = {
    {Py_tp_new, clock_new}, {Py_tp_members, clock_members}, LIFE_SLOTS(Clock), {0, NULL},
};

/* Frees an object that the collector does not know of. */
static void free_plain(PyObject *op) {
    PyTypeObject *own = Py_TYPE(op);
    PyObject_Free(op);
    Py_DECREF(own);
}

/* ------------------------------------------------------------------------------------------- Meter */

/* `ndim` of a shape is NO_SHAPE where there is none. There is a meter for each site, and nearly no
   tensor has many dims. */
typedef struct {
    int ndim;
    int64_t few[FEW_DIMS], *many; /* sizes; `many` where they are not few */
} Shape;

static const int64_t *sizes_of(const Shape *shape) {
    return shape->ndim > FEW_DIMS ? shape->many : shape->few;
}

/* Where the sizes of a new shape go; NULL with an exception, and then there is none. */
static int64_t *sizes_for(Shape *shape, int ndim) {
    shape->ndim = NO_SHAPE;
    if (ndim > FEW_DIMS && !shape->many &&
        !(shape->many = PyMem_Malloc(MOST_DIMS * sizeof *shape->many))) {
        PyErr_NoMemory();
        return NULL;
    }
    shape->ndim = ndim;
    return ndim > FEW_DIMS ? shape->many : shape->few;
}

typedef struct {
    PyObject_HEAD
    PyObject *clock;
    int64_t address; /* of the kernel's arguments */
    int code;        /* of the dtype that is measured; -1: none is */
    long long place; /* of its site */
    char replaces, is_summed_in_order, varies, has_begun;
    Shape known, sample, strides; /* of the last tensor; of a sample that is summed; as it may lie */
    /* A meter that has begun here has these, until Python aims it elsewhere: */
    Aim own;
    PyObject *sums; /* a bytearray of double, where samples are summed */
    long long row;  /* of the table */
    int64_t num_samples;
    char sums_samples; /* whether it sums samples */
} Meter;

/* The collector need not know of it: nothing that a clock refers to refers to a meter. */
static PyObject *new_meter(PyTypeObject *type, PyObject *clock, int replaces) {
    Meter *self = PyObject_New(Meter, type);
    if (!self)
        return NULL;
    memset((char *)self + sizeof(PyObject), 0, sizeof *self - sizeof(PyObject));
    self->clock = held(clock);
    self->replaces = (char)replaces;
    self->is_summed_in_order = 1;
    self->code = self->place = -1;
    self->known.ndim = self->sample.ndim = self->strides.ndim = NO_SHAPE;
    return (PyObject *)self;
}

static PyObject *meter_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *clock;
    int replaces;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "O!p:Meter", clock_type, &clock, &replaces))
        return NULL;
    return new_meter(type, clock, replaces);
}

/* Reads a tuple of integers, or None. More dims than there is room for are none. */
static int read_shape(PyObject *tuple, Shape *shape) {
    Py_ssize_t ndim = tuple && tuple != Py_None ? PyTuple_Size(tuple) : NO_SHAPE;
    if (ndim == -1 && PyErr_Occurred())
        return -1;
    int64_t *sizes = sizes_for(shape, ndim > MOST_DIMS ? NO_SHAPE : (int)ndim);
    for (int d = 0; sizes && d < shape->ndim; d++)
        sizes[d] = PyLong_AsLongLong(PyTuple_GetItem(tuple, d));
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *meter_get_shape(PyObject *op, void *unused) {
    const Shape *known = &((Meter *)op)->known;
    (void)unused;
    if (known->ndim == NO_SHAPE)
        return none();
    PyObject *shape = PyTuple_New(known->ndim);
    for (int d = 0; shape && d < known->ndim; d++)
        PyTuple_SetItem(shape, d, PyLong_FromLongLong(sizes_of(known)[d]));
    return shape;
}

static int meter_set_shape(PyObject *op, PyObject *shape, void *unused) {
    (void)unused;
    return read_shape(shape, &((Meter *)op)->known);
}

static PyObject *meter_aim(PyObject *op, PyObject *arguments) {
    Meter *self = (Meter *)op;
    long long address;
    PyObject *sample;
    if (!PyArg_ParseTuple(arguments, "LO:aim", &address, &sample))
        return NULL;
    self->address = address;
    return read_shape(sample, &self->sample) ? NULL : none();
}

static PyObject *meter_trust(PyObject *op, PyObject *arguments) {
    Meter *self = (Meter *)op;
    int code, in_order;
    PyObject *strides;
    if (!PyArg_ParseTuple(arguments, "iOp:trust", &code, &strides, &in_order) ||
        read_shape(strides, &self->strides))
        return NULL;
    self->code = code;
    self->is_summed_in_order = (char)in_order;
    return none();
}

static PyObject *meter_distrust(PyObject *op, PyObject *unused) {
    (void)unused;
    ((Meter *)op)->code = -1;
    return none();
}

/* Does as Tensor.is_contiguous. */
static int is_contiguous(const DLTensor *tensor, int64_t numel) {
    int64_t expected = 1;
    for (int d = tensor->ndim - 1; numel && d >= 0; d--) {
        if (tensor->shape[d] != 1 && tensor->strides[d] != expected)
            return 0;
        expected *= tensor->shape[d];
    }
    return 1;
}

static int equal(const Shape *shape, const int64_t *sizes, int ndim, int first) {
    size_t size = sizeof *sizes * (size_t)(ndim > first ? ndim - first : 0);
    return shape->ndim == ndim && !memcmp(sizes_of(shape) + first, sizes + first, size);
}

/* Whether a sum over samples of another shape goes on. */
static int has_same_samples(const Shape *sample, const DLTensor *tensor) {
    int ndim = tensor->ndim ? tensor->ndim - 1 : 0;
    return sample->ndim == ndim &&
           !memcmp(sizes_of(sample), tensor->shape + 1, sizeof(int64_t) * (size_t)ndim);
}

/* Looks at a tensor; whether the kernel can read it as it lies. */
static int can_read(const Meter *self, PyObject *object, DLTensor *tensor, int64_t *numel) {
    if (Py_TYPE(object) != tensor_type && Py_TYPE(object) != parameter_type)
        return 0;
    /* It raises for what has no memory of its own: sparse, nested, batched. */
    if (exchange->look(object, tensor) || is_true(ask(is_neg, object))) {
        PyErr_Clear();
        return 0;
    }
    if (tensor->device_type != CPU || tensor->ndim > MOST_DIMS ||
        memcmp(&tensor->dtype, DTYPES + self->code, sizeof tensor->dtype))
        return 0;
    *numel = 1;
    for (int d = 0; d < tensor->ndim; d++)
        *numel *= tensor->shape[d];
    if (*numel && !tensor->data) /* Freed, or zeros that autograd keeps nowhere. */
        return 0;
    if (self->is_summed_in_order && is_contiguous(tensor, *numel))
        return 1;
    return equal(&self->strides, tensor->strides, tensor->ndim, 0) &&
           equal(&self->known, tensor->shape, tensor->ndim, 1);
}

/* Whether what a meter has just measured of a tensor can be taken for another one. */
static int is_repeated(Meter *self, const DLTensor *tensor, int64_t numel, const Meter *same) {
    const char *data = (const char *)tensor->data + tensor->byte_offset;
    return same && same->clock == self->clock && same->code == self->code && !self->replaces &&
           torchtap_repeat(data, numel, self->code, same->address, self->address);
}

/* Runs the kernel while the lock is held; 0 where the meter fits no longer. */
static int run_kernel(Meter *self, const DLTensor *tensor, int64_t numel, int64_t step,
                      const Meter *same) {
    Clock *clock = (Clock *)self->clock;
    int64_t threads = 1;
    if (numel >= LARGE) {
        PyObject *number = PyObject_CallNoArgs(num_threads);
        threads = number ? PyLong_AsLongLong(number) : 1;
        Py_XDECREF(number);
    }
    PyObject *answer = PyObject_CallNoArgs(clock->acquire);
    if (!answer)
        return -1;
    Py_DECREF(answer);
    /* Another thread may have brought another dtype meanwhile, or ended the step. */
    int fits = step == clock->step && self->code >= 0 &&
               !memcmp(&tensor->dtype, DTYPES + self->code, sizeof tensor->dtype);
    if (fits) {
        clock->has_measured = 1;
        const char *data = (const char *)tensor->data + tensor->byte_offset;
        if (!is_repeated(self, tensor, numel, same))
            torchtap_measure(data, numel, self->code, self->address, threads, self->replaces);
    }
    answer = PyObject_CallNoArgs(clock->release);
    Py_XDECREF(answer);
    return answer ? fits : -1;
}

/* The code of a floating-point dtype, or -1. */
static int code_of_float(const DLDataType *dtype) {
    for (int code = 0; code < 4; code++)
        if (!memcmp(dtype, DTYPES + code, sizeof *dtype))
            return code;
    return -1;
}

/* Whether a tensor lies as a new one does, and its storage has all of its elements: FSDP frees
   storages under living tensors. */
static int lies_as_new(PyObject *object, const DLTensor *tensor, int64_t *numel) {
    *numel = 1;
    for (int d = tensor->ndim - 1; d >= 0; d--) {
        if (tensor->strides[d] != *numel)
            return 0;
        *numel *= tensor->shape[d];
    }
    if (!*numel || !tensor->data)
        return 0;
    PyObject *storage = PyObject_CallMethodObjArgs(object, n_untyped_storage, NULL);
    PyObject *size = storage ? PyObject_CallMethodObjArgs(storage, n_nbytes, NULL) : NULL;
    PyObject *start = size ? PyObject_CallMethodObjArgs(object, n_storage_offset, NULL) : NULL;
    long long end = start ? PyLong_AsLongLong(start) + *numel : -1;
    int has_all = start && PyLong_AsLongLong(size) >= end * (tensor->dtype.bits / 8);
    Py_XDECREF(start);
    Py_XDECREF(size);
    Py_XDECREF(storage);
    return has_all;
}

/* Makes room for the sum over samples of so many elements. */
static int make_sums(Meter *self, int64_t inner) {
    PyObject *made = PyByteArray_FromStringAndSize(NULL, inner * 8);
    if (!made)
        return -1;
    char *numbers = PyByteArray_AsString(made);
    memset(numbers, 0, (size_t)inner * 8);
    self->sums = made;
    self->own.sums = (int64_t)(intptr_t)numbers;
    self->own.inner = inner;
    self->own.num_samples = (int64_t)(intptr_t)&self->num_samples;
    return 0;
}

/* Notes a shape, without the dims before `first`; -1 with an exception. */
static int note_shape(Shape *shape, const int64_t *sizes, int ndim, int first) {
    int64_t *own = sizes_for(shape, ndim - first);
    if (own)
        memcpy(own, sizes + first, sizeof *sizes * (size_t)shape->ndim);
    return own ? 0 : -1;
}

/* Takes a row, while the lock is held: 0 where the meter has one, or there is none. */
static int take_row(Meter *self, const DLTensor *tensor, int64_t numel, int code) {
    Clock *clock = (Clock *)self->clock;
    if (self->address || (self->row = torchtap_add_row(clock->table, self->place, &self->own)) < 0)
        return 0;
    self->own.sample = clock->sample;
    if (self->sums_samples && make_sums(self, numel / tensor->shape[0]))
        return 0;
    note_shape(&self->known, tensor->shape, tensor->ndim, 0);
    note_shape(&self->strides, tensor->strides, tensor->ndim, 0);
    if (self->sums_samples)
        note_shape(&self->sample, tensor->shape, tensor->ndim, 1);
    self->address = (int64_t)(intptr_t)&self->own;
    self->is_summed_in_order = 1;
    self->code = code;
    return 1;
}

/* Has a meter measure tensors like its first one, as Stats._begin: 0 where Python has to. What was
   noted here Python asks for (`begun`) when it needs it. */
static int begin_here(Meter *self, PyObject *object) {
    Clock *clock = (Clock *)self->clock;
    DLTensor tensor;
    int64_t numel;
    if (!torchtap_is_table(clock->table) ||
        (Py_TYPE(object) != tensor_type && Py_TYPE(object) != parameter_type) ||
        exchange->look(object, &tensor) || tensor.device_type != CPU || !tensor.ndim ||
        tensor.ndim > FEW_DIMS)
        return 0;
    int code = code_of_float(&tensor.dtype);
    if (code < 0 || is_true(ask(is_neg, object)) || !lies_as_new(object, &tensor, &numel))
        return 0;
    PyObject *answer = PyObject_CallNoArgs(clock->acquire);
    if (!answer)
        return 0;
    Py_DECREF(answer);
    int has_begun = take_row(self, &tensor, numel, code);
    PyObject *type, *error, *trace; /* No function may be called while there is an exception. */
    PyErr_Fetch(&type, &error, &trace);
    answer = PyObject_CallNoArgs(clock->release);
    Py_XDECREF(answer);
    if (answer || type)
        PyErr_Restore(type, error, trace);
    return has_begun;
}

/* Whether a meter is ready, which its first tensor makes it; -1 where an interrupt came. The sink, which
   is given what is not measured here, meets other exceptions again. */
static int is_ready(Meter *self, PyObject *tensor) {
    PyObject *begin = ((Clock *)self->clock)->begin;
    if (self->code < 0 && !self->has_begun && self->place >= 0 && begin && begin != Py_None) {
        self->has_begun = 1;
        int is_here = begin_here(self, tensor);
        if (forgive())
            return -1;
        PyObject *answer =
            is_here ? NULL : PyObject_CallFunction(begin, "LO", self->place, tensor);
        Py_XDECREF(answer);
        if (forgive())
            return -1;
    }
    return self->code >= 0;
}

static int measure_held(Meter *self, PyObject *object, int64_t step, const Meter *same) {
    DLTensor tensor;
    int64_t numel;
    int ready = is_ready(self, object);
    if (ready < 1 || !can_read(self, object, &tensor, &numel))
        return ready < 0 ? -1 : 0;
    if (!equal(&self->known, tensor.shape, tensor.ndim, 0)) {
        if (self->sample.ndim != NO_SHAPE && !has_same_samples(&self->sample, &tensor))
            return 0;
        if (note_shape(&self->known, tensor.shape, tensor.ndim, 0))
            return forgive();
        self->varies = 1;
    }
    return run_kernel(self, &tensor, numel, step, same);
}

/* Measures a tensor: 1, or 0 where that takes more care, or -1 with an exception. `same`: the meter
   that has just measured it, or NULL. Other threads run meanwhile, so the meter is held. */
static int measure(Meter *self, PyObject *object, int64_t step, const Meter *same) {
    if (!self->clock || step != ((Clock *)self->clock)->step)
        return 0;
    Py_INCREF((PyObject *)self);
    int could = measure_held(self, object, step, same);
    Py_DECREF((PyObject *)self);
    return could;
}

static PyObject *meter_call(PyObject *op, PyObject *arguments, PyObject *keywords) {
    PyObject *tensor;
    long long step;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "OL:Meter", &tensor, &step))
        return NULL;
    int could = measure((Meter *)op, tensor, step, NULL);
    return could < 0 ? NULL : boolean(could);
}

static PyMethodDef meter_methods[] = {
    {"aim", meter_aim, METH_VARARGS, "aim(address, shape of a sample that is summed or None)"},
    {"trust", meter_trust, METH_VARARGS, "trust(dtype code, strides or None, is_summed_in_order)"},
    {"distrust", meter_distrust, METH_NOARGS, "Measure nothing quickly."},
    {NULL, NULL, 0, NULL},
};
/* Returns notes of a meter that has begun here, until it is aimed elsewhere; else None. */
static PyObject *meter_get_begun(PyObject *op, void *unused) {
    Meter *self = (Meter *)op;
    (void)unused;
    if (!self->address || self->address != (int64_t)(intptr_t)&self->own)
        return none();
    return Py_BuildValue("(LiLOL)", self->row, self->code, (long long)self->own.last_list,
                         self->sums ? self->sums : Py_None, (long long)self->num_samples);
}

static PyMemberDef meter_members[] = {
    FLAG(Meter, varies), NUMBER(Meter, place), FLAG(Meter, sums_samples), {NULL, 0, 0, 0, NULL}};
static PyGetSetDef meter_properties[] = {
    {"shape", meter_get_shape, meter_set_shape, NULL, NULL},
    {"begun", meter_get_begun, NULL,
     "(row of the table, dtype code, last list, sums or None, number of samples), or None", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static void meter_free(PyObject *op) {
    Meter *self = (Meter *)op;
    PyMem_Free(self->known.many);
    PyMem_Free(self->sample.many);
    PyMem_Free(self->strides.many);
    Py_XDECREF(self->clock);
    Py_XDECREF(self->sums);
    free_plain(op);
}

static PyType_Slot meter_slots[] = {
    {Py_tp_new, meter_new},          {Py_tp_call, meter_call},
    {Py_tp_methods, meter_methods},  {Py_tp_members, meter_members},
    {Py_tp_getset, meter_properties}, {Py_tp_dealloc, meter_free},  {0, NULL},
};

/* --------------------------------------------------------------------------------------- SiteState */

typedef struct {
    PyObject_HEAD
    PyObject *site, *meter, *reason, *copies;
    long long expected, received;
    char seen;
} State;
#define STATE(do, op) do(op, State, site) do(op, State, meter) do(op, State, reason) do(op, State, copies)
LIFE(State, STATE)

static PyObject *new_state(PyTypeObject *type, PyObject *site, PyObject *copies, PyObject *meter) {
    MAKE(State, type)
    self->site = held(site);
    self->copies = held(copies);
    self->meter = held(meter);
    PyObject_GC_Track((PyObject *)self);
    return (PyObject *)self;
}

static PyObject *state_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *site, *copies, *meter;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "OOO:SiteState", &site, &copies, &meter))
        return NULL;
    return new_state(type, site, copies, meter);
}

static PyMemberDef state_members[] = {
    OBJECT(State, site),     OBJECT(State, meter),    OBJECT(State, reason), OBJECT(State, copies),
    NUMBER(State, expected), NUMBER(State, received), FLAG(State, seen),     {NULL, 0, 0, 0, NULL},
};
static PyType_Slot state_slots[] = {
    {Py_tp_new, state_new}, {Py_tp_members, state_members}, LIFE_SLOTS(State), {0, NULL},
};

static int measure_at(State *state, PyObject *tensor, int64_t step) {
    PyObject *meter = state->meter;
    return meter && Py_TYPE(meter) == meter_type ? measure((Meter *)meter, tensor, step, NULL) : 0;
}

/* --------------------------------------------------------------------------------------- Gradients */

/* Takes plain gradients for a ``capture.gradient_ports.Gradients``, which takes all others. */
typedef struct {
    PyObject_HEAD
    PyObject *others, *own_deliver;
    PyObject *tables, *join; /* of its TensorHooks: tables of tensors, and how to share one */
    PyObject *followed;      /* views that are followed, by thread */
    PyObject *pending, *repair;
    PyObject *emit;          /* takes records */
    PyObject *backwards, *numbers; /* hooks.backwards.Backwards; task -> number */
    PyObject *empty;         /* a tensor without elements, as CopyPolicy.nothing_like; NULL or: */
    DLDataType kind;         /* its dtype */
    int32_t device[2];       /* and its device */
    char borrows;            /* sinks have read an output when they return */
    char is_over;            /* released; what it refers to goes with the last use */
    int uses;                /* that run now, in any thread */
} Gradients;
#define GRADIENTS(do, op)                                                                          \
    do(op, Gradients, others) do(op, Gradients, own_deliver) do(op, Gradients, tables)             \
    do(op, Gradients, join) do(op, Gradients, followed) do(op, Gradients, pending)                 \
    do(op, Gradients, repair) do(op, Gradients, emit) do(op, Gradients, backwards)                 \
    do(op, Gradients, numbers) do(op, Gradients, empty)
LIFE(Gradients, GRADIENTS)

static PyObject *gradients_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *given[9];
    int borrows;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "OO!OOOOOOO!p:Gradients", given, &PyList_Type, given + 1,
                          given + 2, given + 3, given + 4, given + 5, given + 6, given + 7,
                          &PyDict_Type, given + 8, &borrows))
        return NULL;
    MAKE(Gradients, type)
    self->others = held(given[0]);
    self->tables = held(given[1]);
    self->join = held(given[2]);
    self->followed = held(given[3]);
    self->pending = held(given[4]);
    self->repair = held(given[5]);
    self->emit = held(given[6]);
    self->backwards = held(given[7]);
    self->numbers = held(given[8]);
    self->borrows = (char)borrows;
    self->own_deliver = NULL;
    PyObject_GC_Track((PyObject *)self);
    return (PyObject *)self;
}

/* Another thread may close the watch wherever the interpreter's lock is given away: what a call in the
   middle refers to stays until it has ended. A use begins unless all is over. */
static int begin_use(Gradients *self) {
    if (!self->others || self->is_over)
        return 0;
    self->uses++;
    return 1;
}

static void end_use(Gradients *self) {
    if (!--self->uses && self->is_over)
        Gradients_clear((PyObject *)self);
}

/* Whether values of a site become records, where nothing has to be copied. */
static int keeps_values(const State *state) {
    return state->meter == no_meter && state->copies == Py_False;
}

/* Whether values of a site become records of copies, as where others write into the memory. */
static int copies_values(const State *state) {
    return state->meter == no_meter && state->copies == Py_True;
}

/* Copies a tensor, as core.inference_mode.normal_copy: NULL where Python has to, or with an interrupt. */
static PyObject *copy_of(PyObject *tensor) {
    DLTensor unused;
    PyObject *copied = NULL, *alias = exchange->look(tensor, &unused) ? NULL : ask(detach, tensor);
    if (alias && (copied = PyObject_CallMethodObjArgs(alias, n_clone, NULL)) &&
        is_true(PyObject_CallMethodObjArgs(copied, n_is_inference, NULL)))
        Py_CLEAR(copied);
    Py_XDECREF(alias);
    if (forgive())
        Py_CLEAR(copied);
    return copied;
}

/* Makes a record of a value and hands it on; takes over `kept`. */
static int emit(const Gradients *self, const State *state, PyObject *step, PyObject *call,
                PyObject *backward, PyObject *kept, int64_t version) {
    PyObject *labels = PyTuple_New(0), *counted = PyLong_FromLongLong(version), *row = NULL;
    if (labels && counted && backward && kept)
        row = PyTuple_Pack(8, state->site, step, call, forward, backward, labels, kept, counted);
    /* tuple.__new__, as core.record.new_record. */
    newfunc make = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
    PyObject *arguments = row ? PyTuple_Pack(1, row) : NULL;
    PyObject *record = arguments ? make((PyTypeObject *)record_type, arguments, NULL) : NULL;
    PyObject *answer = record ? ask(self->emit, record) : NULL;
    PyObject *made[] = {labels, counted, row, arguments, record, answer, kept, backward};
    int failed = !answer;
    for (int i = 0; i < LENGTH(made); i++)
        Py_XDECREF(made[i]);
    return failed ? -1 : 0;
}

/* Number of the backward that is running, as Backwards.number. */
static PyObject *backward_number(const Gradients *self) {
    PyObject *task = PyObject_CallNoArgs(current_task);
    PyObject *number = task ? held(PyDict_GetItemWithError(self->numbers, task)) : NULL;
    Py_XDECREF(task);
    if (number || PyErr_Occurred())
        return number;
    return PyObject_CallMethodObjArgs(self->backwards, n_number, NULL);
}

/* Whether a gradient is one of values that no graph leads to. */
static int is_plain_gradient(PyObject *gradient) {
    if (Py_TYPE(gradient) != tensor_type)
        return 0;
    int odd = is_true(ask(is_legacy_batched, gradient));
    odd = odd ? odd : is_true(ask(is_of_transform, gradient));
    odd = odd ? odd : is_true(PyObject_GetAttr(gradient, n_requires_grad));
    return odd < 0 ? -1 : !odd;
}

/* Whether the caller handed gradients to the backward: known once it has its number. */
static int has_given(const Gradients *self) {
    PyObject *given = PyObject_GetAttr(self->backwards, n_given);
    Py_ssize_t size = given ? PySet_Size(given) : -1;
    Py_XDECREF(given);
    return size < 0 ? -1 : size > 0;
}

/* Keeps a plain gradient: 1, or 0 where that takes more care, or -1. */
static int keep_gradient(Gradients *self, State *state, PyObject *step, PyObject *call,
                         PyObject *gradient) {
    int plain = is_plain_gradient(gradient);
    if (plain < 1)
        return plain;
    PyObject *number = backward_number(self), *kept = NULL;
    int copies = copies_values(state), given = number ? has_given(self) : -1;
    int64_t version = UNVERSIONED;
    if (!given && copies && !(kept = copy_of(gradient)))
        given = PyErr_Occurred() ? -1 : 1; /* Python takes it too. */
    else if (!given && !copies && (version = version_of(gradient)) < 0)
        given = -1;
    if (given) {
        Py_XDECREF(number);
        return given == 1 ? 0 : -1;
    }
    state->received++;
    state->seen = 1;
    kept = copies ? kept : held(gradient);
    return emit(self, state, step, call, number, kept, version) ? -1 : 1;
}

/* Keeps the output of a plain call, as Values.take_plain. */
static int keep_output(const Gradients *self, State *state, PyObject *output, PyObject *step,
                       PyObject *call) {
    PyObject *kept = self->borrows ? held(output) : ask(detach, output);
    int64_t version = self->borrows || !kept ? UNVERSIONED : version_of(kept);
    state->seen = 1;
    if (!self->borrows && version < 0) {
        Py_XDECREF(kept);
        return -1;
    }
    return emit(self, state, step, call, PyLong_FromLongLong(-1), kept, version);
}

/* Hands a gradient that is not plain to Python. */
static PyObject *deliver_there(Gradients *self, PyObject *state, PyObject *step, PyObject *call,
                               PyObject *gradient) {
    PyObject *labels = PyTuple_New(0);
    PyObject *answer = labels ? PyObject_CallMethodObjArgs(self->others, n_deliver, state, step, call,
                                                           labels, gradient, NULL)
                              : NULL;
    Py_XDECREF(labels);
    return answer;
}

static PyObject *take_gradient(Gradients *self, State *state, PyObject *step, PyObject *call,
                               PyObject *gradient) {
    if (keeps_values(state) || copies_values(state)) {
        int kept = keep_gradient(self, state, step, call, gradient);
        if (kept)
            return kept < 0 ? NULL : none();
    }
    int could = measure_at(state, gradient, PyLong_AsLongLong(step));
    if (could < 0)
        return NULL;
    if (!could)
        return deliver_there(self, (PyObject *)state, step, call, gradient);
    state->received++;
    state->seen = 1;
    return none();
}

static PyObject *deliver(Gradients *self, State *state, PyObject *step, PyObject *call,
                         PyObject *gradient) {
    if (gradient == Py_None || !begin_use(self))
        return none();
    PyObject *answer = take_gradient(self, state, step, call, gradient);
    end_use(self);
    return answer;
}

static PyObject *gradients_deliver(PyObject *op, PyObject *const *arguments, Py_ssize_t given) {
    if (given != 4 || Py_TYPE(arguments[0]) != state_type) {
        PyErr_SetString(PyExc_TypeError, "deliver takes a state, step, call and gradient");
        return NULL;
    }
    return deliver((Gradients *)op, (State *)arguments[0], arguments[1], arguments[2], arguments[3]);
}

/* Hooks on tensors of graphs that are still alive hold it, and must hold nothing else. */
static PyObject *gradients_release(PyObject *op, PyObject *unused) {
    Gradients *self = (Gradients *)op;
    (void)unused;
    self->is_over = 1;
    if (!self->uses)
        Gradients_clear(op);
    return none();
}

static PyMethodDef gradients_methods[] = {
    {"deliver", (PyCFunction)(void (*)(void))gradients_deliver, METH_FASTCALL,
     "deliver(state, step, call, gradient): takes a gradient that has arrived"},
    {"release", gradients_release, METH_NOARGS, "Take no gradient any more."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef gradients_members[] = {
    {"gradients", T_OBJECT, offsetof(Gradients, others), READONLY, NULL}, {NULL, 0, 0, 0, NULL},
};
static PyType_Slot gradients_slots[] = {
    {Py_tp_new, gradients_new}, {Py_tp_methods, gradients_methods},
    {Py_tp_members, gradients_members}, LIFE_SLOTS(Gradients), {0, NULL},
};

/* ------------------------------------------------------- Arrival: of the gradient of a returned view */

typedef struct {
    PyObject_HEAD
    PyObject *owner, *state, *step, *call;
    PyObject *alias;   /* shares the version counter of the view; NULL of a leaf's */
    PyObject *pending; /* takes over where anything wrote into the view */
    int64_t version;
} Arrival;
#define ARRIVAL(do, op)                                                                            \
    do(op, Arrival, owner) do(op, Arrival, state) do(op, Arrival, step) do(op, Arrival, call)      \
    do(op, Arrival, alias) do(op, Arrival, pending)
LIFE(Arrival, ARRIVAL)

/* Whether anything wrote into the view since it was returned. */
static int is_overwritten(const Arrival *self) {
    if (!self->alias)
        return 0;
    int64_t version = version_of(self->alias);
    return version < 0 ? -1 : version != self->version;
}

static PyObject *add_part(Arrival *self, PyObject *part) {
    if (!self->pending) {
        int lost = is_overwritten(self);
        if (lost < 0)
            return NULL;
        if (!lost)
            return deliver((Gradients *)self->owner, (State *)self->state, self->step, self->call,
                           part);
        PyObject *version = PyLong_FromLongLong(self->version);
        self->pending = version ? PyObject_CallFunctionObjArgs(
                                      ((Gradients *)self->owner)->pending, self->state, self->step,
                                      self->call, self->alias, version, NULL)
                                : NULL;
        Py_XDECREF(version);
        if (!self->pending)
            return NULL;
    }
    return PyObject_CallMethodObjArgs(self->pending, n_add, part, NULL);
}

static PyObject *arrival_add(PyObject *op, PyObject *part) {
    Gradients *owner = (Gradients *)((Arrival *)op)->owner;
    if (part == Py_None || !begin_use(owner))
        return none();
    PyObject *answer = add_part((Arrival *)op, part);
    end_use(owner);
    return answer;
}

static PyMethodDef arrival_methods[] = {
    {"add", arrival_add, METH_O, "add(part): takes a gradient that has arrived"},
    {NULL, NULL, 0, NULL},
};
static PyObject *arrival_get_gradients(PyObject *op, void *unused) {
    PyObject *others = ((Gradients *)((Arrival *)op)->owner)->others;
    (void)unused;
    return held(others ? others : Py_None);
}

static PyMemberDef arrival_members[] = {FIXED(Arrival, state), {NULL, 0, 0, 0, NULL}};
static PyGetSetDef arrival_properties[] = {
    {"gradients", arrival_get_gradients, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot arrival_slots[] = {
    {Py_tp_methods, arrival_methods}, {Py_tp_members, arrival_members},
    {Py_tp_getset, arrival_properties}, LIFE_SLOTS(Arrival), {0, NULL},
};

/* ------------------------------------------- FollowedView: while the calls around a returned view run */

/* Holds the graph of its view, so no hook may hold it. */
typedef struct {
    PyObject_HEAD
    PyObject *view, *first, *arrival;
} Followed;
#define FOLLOWED(do, op) do(op, Followed, view) do(op, Followed, first) do(op, Followed, arrival)
LIFE(Followed, FOLLOWED)

static PyObject *followed_is_overwritten(PyObject *op, void *unused) {
    (void)unused;
    int is = is_overwritten((Arrival *)((Followed *)op)->arrival);
    return is < 0 ? NULL : boolean(is);
}

static PyObject *followed_repair(PyObject *op, PyObject *unused) {
    Followed *self = (Followed *)op;
    Arrival *arrival = (Arrival *)self->arrival;
    Gradients *owner = (Gradients *)arrival->owner;
    (void)unused;
    if (!begin_use(owner))
        return none();
    PyObject *pending, *handle, *version = PyLong_FromLongLong(arrival->version);
    PyObject *found = version ? PyObject_CallFunctionObjArgs(
                                    owner->repair, self->view, self->first, arrival->state,
                                    arrival->step, arrival->call, arrival->alias, version, NULL)
                              : NULL;
    end_use(owner);
    Py_XDECREF(version);
    if (!found || found == Py_None)
        return found;
    if (!PyArg_ParseTuple(found, "OO", &pending, &handle)) {
        Py_DECREF(found);
        return NULL;
    }
    PyObject *before = arrival->pending;
    arrival->pending = held(pending);
    Py_XDECREF(before);
    Py_INCREF(handle);
    Py_DECREF(found);
    return handle;
}

static PyMethodDef followed_methods[] = {
    {"repair", followed_repair, METH_NOARGS, "Follow the view to the node that took over."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef followed_members[] = {FIXED(Followed, view), {NULL, 0, 0, 0, NULL}};
static PyGetSetDef followed_properties[] = {
    {"is_overwritten", followed_is_overwritten, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot followed_slots[] = {
    {Py_tp_methods, followed_methods}, {Py_tp_members, followed_members},
    {Py_tp_getset, followed_properties}, LIFE_SLOTS(Followed), {0, NULL},
};

/* ------------------------------------------- StepCounter and CallNumbers, as hooks.call_numbers */

/* Neither refers to anything that could refer back: the collector need not know of them. */
typedef struct {
    PyObject_HEAD
    long long current;
    long long of_graphs, number; /* `current` as is_training last found it, and the step's number */
} Steps;

static PyObject *steps_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    (void)arguments, (void)keywords;
    if (!current_task) {
        PyErr_SetString(PyExc_RuntimeError, "bind_calls comes first");
        return NULL;
    }
    Steps *self = PyObject_New(Steps, type);
    if (self)
        self->current = self->number = 0, self->of_graphs = -1;
    return (PyObject *)self;
}

/* The number of a call that a thread has entered and not left. */
typedef struct {
    unsigned long thread;
    long long number;
} Entered;

typedef struct {
    PyObject_HEAD
    PyObject *steps;
    long long step, next;
    Entered *entered;
    Py_ssize_t size, room;
} Numbers;

static void numbers_free(PyObject *op) {
    PyMem_Free(((Numbers *)op)->entered);
    Py_DECREF(((Numbers *)op)->steps);
    free_plain(op);
}

static PyObject *steps_new_numbers(PyObject *op, PyObject *unused) {
    (void)unused;
    Numbers *self = PyObject_New(Numbers, numbers_type);
    if (!self)
        return NULL;
    memset((char *)self + sizeof(PyObject), 0, sizeof *self - sizeof(PyObject));
    self->steps = held(op);
    self->step = ((Steps *)op)->current;
    return (PyObject *)self;
}

static void begin_step(Numbers *self) {
    long long step = ((Steps *)self->steps)->current;
    if (self->step != step)
        self->next = self->size = 0;
    self->step = step;
}

/* The number that this thread's innermost call has drawn, or a new one. */
static long long next_number(Numbers *self) {
    begin_step(self);
    unsigned long thread = self->size ? PyThread_get_thread_ident() : 0;
    for (Py_ssize_t at = self->size - 1; at >= 0; at--) {
        Entered *found = self->entered + at;
        if (found->thread != thread)
            continue;
        long long number = found->number;
        self->size--;
        memmove(found, found + 1, sizeof *found * (size_t)(self->size - at));
        return number;
    }
    return self->next++;
}

static PyObject *numbers_next(PyObject *op) {
    return PyLong_FromLongLong(next_number((Numbers *)op));
}

/* Draws the number of a call that is entered; an interrupt leaves its own behind. */
static int enter_call(Numbers *self) {
    begin_step(self);
    if (self->size == self->room && self->room < MOST_ENTERED) {
        Py_ssize_t room = self->room ? 2 * self->room : 4;
        Entered *more = PyMem_Realloc(self->entered, sizeof *more * (size_t)room);
        if (!more) {
            PyErr_NoMemory();
            return -1;
        }
        self->entered = more;
        self->room = room;
    } else if (self->size == self->room) {
        self->size--;
        memmove(self->entered, self->entered + 1, sizeof *self->entered * (size_t)self->size);
    }
    self->entered[self->size++] = (Entered){PyThread_get_thread_ident(), self->next++};
    return 0;
}

/* Whether a backward is running. */
static int is_in_backward(void) {
    PyObject *task = PyObject_CallNoArgs(current_task);
    long long number = task ? PyLong_AsLongLong(task) : -1;
    Py_XDECREF(task);
    return PyErr_Occurred() ? -1 : number != -1;
}

static PyObject *numbers_enter(PyObject *op, PyObject *unused) {
    (void)unused;
    int in_backward = is_in_backward();
    if (in_backward < 0 || (!in_backward && enter_call((Numbers *)op)))
        return NULL;
    return none();
}

static PyMethodDef steps_methods[] = {
    {"new_numbers", steps_new_numbers, METH_NOARGS, "Make the numbers of the calls of a module."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef steps_members[] = {NUMBER(Steps, current), {NULL, 0, 0, 0, NULL}};
static PyType_Slot steps_slots[] = {
    {Py_tp_new, steps_new}, {Py_tp_methods, steps_methods}, {Py_tp_members, steps_members},
    {Py_tp_dealloc, free_plain}, {0, NULL},
};
static PyMethodDef numbers_methods[] = {
    {"enter", numbers_enter, METH_NOARGS, "Draw the number of a call as it is entered."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot numbers_slots[] = {
    {Py_tp_iter, PyObject_SelfIter},     {Py_tp_iternext, numbers_next},
    {Py_tp_methods, numbers_methods},    {Py_tp_dealloc, numbers_free}, {0, NULL},
};

/* ------------------------------------------------------------- Leaving: the end of a module's calls */

typedef struct {
    PyObject_HEAD
    PyObject *listener, *busy, *running, *tap, *calls, *output, *gradient, *gradients;
    PyObject *policy; /* copies the first output, see CopyPolicy.keep_first; NULL: Python does */
    char has_trained; /* the tap knows of it */
} Leaving;
#define LEAVING(do, op)                                                                            \
    do(op, Leaving, listener) do(op, Leaving, busy) do(op, Leaving, running) do(op, Leaving, tap)  \
    do(op, Leaving, calls) do(op, Leaving, output) do(op, Leaving, gradient)                       \
    do(op, Leaving, gradients) do(op, Leaving, policy)
LIFE(Leaving, LEAVING)

static PyObject *leaving_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *given[8];
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "OO!OOO!OOO!:Leaving", given, &PySet_Type, given + 1,
                          given + 2, given + 3, numbers_type, given + 4, given + 5, given + 6,
                          gradients_type, given + 7))
        return NULL;
    for (int i = 5; i < 7; i++) {
        if (given[i] != Py_None && Py_TYPE(given[i]) != state_type) {
            PyErr_SetString(PyExc_TypeError, "expected a native SiteState or None");
            return NULL;
        }
    }
    MAKE(Leaving, type)
    PyObject **members[] = {&self->listener, &self->busy,   &self->running,  &self->tap,
                            &self->calls,    &self->output, &self->gradient, &self->gradients};
    for (int i = 0; i < 8; i++)
        *members[i] = held(given[i] == Py_None ? NULL : given[i]);
    PyObject_GC_Track((PyObject *)self);
    return (PyObject *)self;
}
/* Answers as callbacks.is_of_plain_training, for a tensor with a graph. */
static int is_of_plain_training(void) {
    int in_backward = is_in_backward();
    if (in_backward)
        return in_backward < 0 ? -1 : 0;
    int is = is_none(ask(top_saved_hooks, Py_True));
    is = is == 1 ? is_none(PyObject_CallNoArgs(transform_running)) : is;
    return is == 1 ? is_none(PyObject_CallNoArgs(tracing_state)) : is;
}

/* Remembers a table of hooks, to clean it. */
static int remember(const Gradients *self, PyObject *table) {
    PyObject *reference = PyWeakref_NewRef(table, NULL);
    int failed = !reference || PyList_Append(self->tables, reference);
    Py_XDECREF(reference);
    return failed ? -1 : 0;
}

/* Whether a GradHook belongs to these gradients, as Gradients._is_ours. */
static int is_own(const Gradients *self, PyObject *hook) {
    PyObject *func = PyObject_GetAttr(hook, n_func), *gradients = NULL;
    PyObject *owner = func ? PyObject_GetAttr(func, n___self__) : NULL;
    if (owner && !(gradients = PyObject_GetAttr(owner, n_gradients))) {
        PyErr_Clear();
        gradients = held(owner);
    }
    int is = owner ? gradients == self->others : 0;
    PyErr_Clear();
    Py_XDECREF(gradients);
    Py_XDECREF(owner);
    Py_XDECREF(func);
    return is;
}

/* Puts a hook into a table that others made, as TensorHooks.join, which does it among edits. */
static int join(const Gradients *self, PyObject *table, PyObject *hook) {
    PyObject *key, *other;
    Py_ssize_t place = 0;
    int is_known = 0;
    while (PyDict_Next(table, &place, &key, &other)) {
        PyTypeObject *type = Py_TYPE(other);
        if (type == (PyTypeObject *)grad_hook)
            is_known = is_known || is_own(self, other);
        else if (PyType_IsSubtype(type, (PyTypeObject *)grad_hook)) {
            PyObject *answer = PyObject_CallFunctionObjArgs(self->join, table, hook, NULL);
            Py_XDECREF(answer);
            return answer ? 0 : -1;
        }
    }
    return (!is_known && remember(self, table)) || PyObject_SetItem(table, hook, hook) ? -1 : 0;
}

/* Puts a hook on a tensor that an operation made, as hooks.tensor_hooks.TensorHooks.put. */
static int put_hook(const Gradients *self, PyObject *tensor, PyObject *node, PyObject *table,
                    PyObject *hook) {
    if (table != Py_None)
        return join(self, table, hook);
    PyObject *made = PyObject_CallNoArgs(new_table), *answer = NULL;
    int failed = !made || PyObject_SetAttr(tensor, n__backward_hooks, made) ||
                 !(answer = PyObject_CallMethodObjArgs(node, n__register_hook_dict, tensor, NULL)) ||
                 remember(self, made) || PyObject_SetItem(made, hook, hook);
    Py_XDECREF(answer);
    Py_XDECREF(made);
    return failed ? -1 : 0;
}

/* Follows a view that was returned; its arrival is what its hook belongs to. */
static PyObject *follow(Gradients *self, PyObject *state, PyObject *step, PyObject *call,
                        PyObject *view) {
    Arrival *arrival = PyObject_GC_New(Arrival, arrival_type);
    if (!arrival)
        return NULL;
    memset((char *)arrival + sizeof(PyObject), 0, sizeof *arrival - sizeof(PyObject));
    arrival->owner = held((PyObject *)self);
    arrival->state = held(state);
    arrival->step = held(step);
    arrival->call = held(call);
    PyObject_GC_Track((PyObject *)arrival);
    PyObject *base = PyObject_GetAttr(view, n__base), *list = NULL;
    int of_leaf = base ? is_true(PyObject_GetAttr(base, n_is_leaf)) : -1;
    Py_XDECREF(base);
    if (of_leaf == 1)
        return (PyObject *)arrival;
    Followed *followed = of_leaf ? NULL : PyObject_GC_New(Followed, followed_type);
    int failed = !followed;
    if (followed) {
        memset((char *)followed + sizeof(PyObject), 0, sizeof *followed - sizeof(PyObject));
        followed->view = held(view);
        followed->arrival = held((PyObject *)arrival);
        PyObject_GC_Track((PyObject *)followed);
        failed = !(arrival->alias = ask(detach, view)) ||
                 (arrival->version = version_of(view)) < 0 ||
                 !(followed->first = PyObject_CallNoArgs(sequence_number)) ||
                 !(list = PyObject_GetAttr(self->followed, n_views)) ||
                 PyList_Append(list, (PyObject *)followed);
    }
    Py_XDECREF(list);
    Py_XDECREF((PyObject *)followed);
    if (failed)
        Py_CLEAR(arrival);
    return (PyObject *)arrival;
}

/* The method that hooks call, borrowed: one for all of them, until the release. */
static PyObject *own_deliver(Gradients *gradients) {
    if (!gradients->own_deliver)
        gradients->own_deliver = PyObject_GetAttr((PyObject *)gradients, n_deliver);
    return gradients->own_deliver;
}

/* Receives the gradient of a plain tensor, as Gradients.expect_plain. */
static int expect(const Leaving *self, PyObject *tensor, PyObject *node, PyObject *table,
                  PyObject *step, PyObject *call, int of_view) {
    Gradients *gradients = (Gradients *)self->gradients;
    PyObject *hook = NULL;
    ((State *)self->gradient)->expected++;
    if (of_view) {
        PyObject *arrival = follow(gradients, self->gradient, step, call, tensor);
        PyObject *add = arrival ? PyObject_GetAttr(arrival, n_add) : NULL;
        hook = add ? ask(grad_hook, add) : NULL;
        Py_XDECREF(add);
        Py_XDECREF(arrival);
    } else {
        PyObject *own = own_deliver(gradients);
        hook = own ? PyObject_CallFunctionObjArgs(grad_hook, own, self->gradient, step, call, NULL)
                   : NULL;
    }
    int failed = !hook || put_hook(gradients, tensor, node, table, hook);
    Py_XDECREF(hook);
    return failed ? -1 : 0;
}

/* Whether a call is running around this one, that will tell of writes into a view. */
static int is_inside_a_call(const Leaving *self) {
    PyObject *stack = PyObject_GetAttr(self->running, n_stack);
    Py_ssize_t size = stack ? PyList_Size(stack) : -1;
    Py_XDECREF(stack);
    return size < 0 ? -1 : size > 0;
}

/* Whether a view is one of a tensor that no operation made. */
static int is_of_leaf(PyObject *view) {
    PyObject *base = PyObject_GetAttr(view, n__base);
    int is = base ? is_none(PyObject_GetAttr(base, n_grad_fn)) : -1;
    Py_XDECREF(base);
    return is;
}

/* Whether an output, made by an operation, lies in memory that its caller passed in, or the model owns: 0
   where it does not, 1 where it may. */
static int may_be_foreign(PyObject *output, int of_view, PyObject *running) {
    int of_leaf = of_view ? is_of_leaf(output) : 0;
    if (of_leaf)
        return of_leaf;
    PyObject *stack = PyObject_GetAttr(running, n_stack);
    Py_ssize_t depth = stack ? PyList_Size(stack) : -1;
    PyObject *foreign =
        depth > 0 ? PyObject_GetAttr(PyList_GetItem(stack, depth - 1), n_foreign) : NULL;
    PyObject *storage =
        foreign ? PyObject_CallMethodObjArgs(output, n_untyped_storage, NULL) : NULL;
    PyObject *number = storage ? PyObject_GetAttr(storage, n__cdata) : NULL;
    int is = number ? PySet_Contains(foreign, number) : depth == 0 ? 1 : -1;
    Py_XDECREF(number);
    Py_XDECREF(storage);
    Py_XDECREF(foreign);
    Py_XDECREF(stack);
    return is;
}

/* A tensor of the same kind without elements, as CopyPolicy.nothing_like; nearly all are of one. */
static PyObject *nothing_like(const Leaving *self, PyObject *alias, const DLTensor *tensor) {
    Gradients *shared = (Gradients *)self->gradients;
    int32_t device[] = {tensor->device_type, tensor->device_id};
    int is_same = shared->empty && !memcmp(&shared->kind, &tensor->dtype, sizeof shared->kind) &&
                  !memcmp(shared->device, device, sizeof device);
    if (!is_same) {
        PyObject *made = PyObject_CallMethodObjArgs(self->policy, n_nothing_like, alias, NULL);
        PyObject *before = shared->empty;
        if (!made)
            return NULL;
        shared->empty = made;
        shared->kind = tensor->dtype;
        memcpy(shared->device, device, sizeof device);
        Py_XDECREF(before);
    }
    return held(shared->empty);
}

/* Watches out for writes into a tensor, as CopyPolicy._watch_out; the alias keeps none of its memory. */
static int watch_out(const Leaving *self, PyObject *alias, const DLTensor *tensor) {
    PyObject *policy = self->policy, *state = self->output;
    PyObject *version = PyObject_GetAttr(alias, n__version);
    PyObject *empty = version ? nothing_like(self, alias, tensor) : NULL;
    PyObject *row = empty ? PyTuple_Pack(3, state, alias, version) : NULL;
    PyObject *witnesses = row ? PyObject_GetAttr(policy, n_witnesses) : NULL;
    Py_ssize_t end = witnesses ? PyList_Size(witnesses) : -1;
    int failed = end < 0 || PyObject_SetAttr(alias, n_data, empty) ||
                 PyList_SetSlice(witnesses, end, end, row);
    Py_XDECREF(witnesses);
    Py_XDECREF(row);
    Py_XDECREF(empty);
    Py_XDECREF(version);
    return failed ? -1 : 0;
}

/* Copies the first output of a site, as CopyPolicy.keep_first: NULL where Python has to decide, or with
   an interrupt, and then nothing was noted. `is_own`: it is known that the output lies in nobody else's
   memory. */
static PyObject *copy_first(const Leaving *self, PyObject *output, int of_view, int is_own) {
    DLTensor tensor;
    PyObject *copied = NULL;
    if (!self->policy || exchange->look(output, &tensor) ||
        (!is_own && may_be_foreign(output, of_view, self->running)))
        return forgive(), NULL;
    PyObject *alias = ask(detach, output);
    copied = alias ? PyObject_CallMethodObjArgs(alias, n_clone, NULL) : NULL;
    if (copied && watch_out(self, alias, &tensor))
        Py_CLEAR(copied);
    Py_XDECREF(alias);
    if (forgive())
        Py_CLEAR(copied);
    return copied;
}

/* The numbers of first calls, by which modules are listed: hooks.tap; NULL where Python draws them. */
static PyObject *first_calls;

/* Does as Tap.note_first_call. */
static int note_first_call(PyObject *tap) {
    if (!first_calls) {
        PyObject *answer = PyObject_CallMethodObjArgs(tap, n_note_first_call, NULL);
        Py_XDECREF(answer);
        return answer ? 0 : -1;
    }
    PyObject *number = PyIter_Next(first_calls);
    int failed = !number || PyObject_SetAttr(tap, n_has_run, Py_True) ||
                 PyObject_SetAttr(tap, n_order, number);
    Py_XDECREF(number);
    return failed ? -1 : 0;
}

/* Notes the first call of a module, as PostForward does: Python has noted that of a call with a frame. */
static int note_first(Leaving *self) {
    int has_run = is_true(PyObject_GetAttr(self->tap, n_has_run));
    int failed = has_run < 0 || (!has_run && note_first_call(self->tap)) ||
                 PyObject_SetAttr(self->tap, n_has_trained, Py_True);
    self->has_trained = !failed;
    return failed ? -1 : 0;
}

/* Takes the output of a call, whose number is drawn where it has none: 1, or 0 where it is not plain
   and nothing was noted, or -1. Who gives a number has looked whose memory it is. */
static int take_output(Leaving *self, PyObject *output, PyObject *node, PyObject *step,
                       PyObject *number) {
    State *state = (State *)self->output;
    PyObject *table = NULL, *call = NULL, *copied = NULL;
    int of_view = is_true(PyObject_CallMethodObjArgs(output, n__is_view, NULL));
    int plain = of_view == 1 ? is_inside_a_call(self) : 1;
    if (of_view < 0 || plain < 1)
        return of_view < 0 ? -1 : plain;
    plain = is_of_plain_training();
    if (plain == 1 && self->gradient && !(table = PyObject_GetAttr(output, n__backward_hooks)))
        plain = -1;
    int keeps = state && keeps_values(state);
    int copies = state && copies_values(state);
    if (plain == 1 && state && (copies || state->copies == Py_None)) {
        copied = copies ? copy_of(output) : copy_first(self, output, of_view, number != NULL);
        plain = copied ? 1 : PyErr_Occurred() ? -1 : 0;
        state->seen |= plain == 1;
    } else if (plain == 1 && state && !keeps) {
        plain = measure_at(state, output, PyLong_AsLongLong(step));
        state->seen |= plain == 1;
    }
    if (plain == 1 && !number && !self->has_trained && note_first(self))
        plain = -1;
    if (plain == 1) {
        call = number ? held(number)
                      : PyLong_FromLongLong(next_number((Numbers *)self->calls));
        plain = call ? 1 : -1;
    }
    if (plain == 1 && copied)
        plain = emit((Gradients *)self->gradients, state, step, call, PyLong_FromLongLong(-1),
                     held(copied), UNVERSIONED)
                    ? -1
                    : 1;
    if (plain == 1 && keeps &&
        keep_output((Gradients *)self->gradients, state, output, step, call))
        plain = -1;
    if (plain == 1 && self->gradient && expect(self, output, node, table, step, call, of_view))
        plain = -1;
    Py_XDECREF(table);
    Py_XDECREF(call);
    Py_XDECREF(copied);
    return plain;
}

/* Whether calls of the tap are known to train. */
static int has_trained(Leaving *self) {
    if (!self->has_trained) {
        int has = is_true(PyObject_GetAttr(self->tap, n_has_run));
        has = has == 1 ? is_true(PyObject_GetAttr(self->tap, n_has_trained)) : has;
        if (has < 0)
            return -1;
        self->has_trained = (char)has;
    }
    return self->has_trained;
}

/* Whether an operation made a tensor, as far as it says without a look at its base. */
static int is_made(PyObject *tensor) {
    int is_leaf = is_true(PyObject_GetAttr(tensor, n_is_leaf));
    return is_leaf < 0 ? -1 : !is_leaf;
}

static int leave_plain(Leaving *self, PyObject *output, PyObject *number) {
    if (Py_TYPE(output) != tensor_type || PySet_Size(self->busy))
        return 0;
    const State *state = (State *)self->output;
    int first = state && state->copies == Py_None && self->policy && state->meter == no_meter;
    int copies = state && (copies_values(state) || first);
    if (state && state->copies != Py_False && !copies)
        return 0;
    int plain = has_trained(self);
    /* The first one is noted here, unless Python has followed it. */
    if (plain < 0 || (!plain && number))
        return plain;
    /* The node itself is looked up where a hook is to be put on it: Python makes an object of it. */
    PyObject *node = self->gradient ? PyObject_GetAttr(output, n_grad_fn) : held(Py_None);
    int has_node = self->gradient ? node != Py_None : is_made(output);
    PyObject *step = node && has_node >= 0 ? PyObject_GetAttr(self->listener, n_step) : NULL;
    plain = !step ? -1 : has_node;
    if (plain == 1 && begin_use((Gradients *)self->gradients)) {
        plain = take_output(self, output, node, step, number);
        end_use((Gradients *)self->gradients);
    }
    Py_XDECREF(node);
    Py_XDECREF(step);
    return plain;
}

/* take(output, number): whether the output of a call that Python has followed was plain, and taken. */
static PyObject *leaving_take(PyObject *op, PyObject *const *arguments, Py_ssize_t given) {
    if (given != 2) {
        PyErr_SetString(PyExc_TypeError, "take takes an output and the number of its call");
        return NULL;
    }
    int plain = leave_plain((Leaving *)op, arguments[0], arguments[1]);
    return plain < 0 ? NULL : boolean(plain);
}

static PyMethodDef leaving_methods[] = {
    {"take", (PyCFunction)(void (*)(void))leaving_take, METH_FASTCALL,
     "take(output, number of the call) -> whether it was plain, and was taken"},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef leaving_members[] = {OBJECT(Leaving, policy), {NULL, 0, 0, 0, NULL}};
static PyType_Slot leaving_slots[] = {
    {Py_tp_new, leaving_new}, {Py_tp_methods, leaving_methods}, {Py_tp_members, leaving_members},
    LIFE_SLOTS(Leaving), {0, NULL},
};

PyObject *torchtap_pass_on(PyObject *const *arguments, Py_ssize_t given) {
    PyObject *passed = PyTuple_New(given - 2);
    for (Py_ssize_t i = 2; passed && i < given; i++) {
        Py_INCREF(arguments[i]);
        PyTuple_SetItem(passed, i - 2, arguments[i]);
    }
    PyObject *answer = passed ? PyObject_Call(arguments[1], passed, NULL) : NULL;
    Py_XDECREF(passed);
    return answer;
}

/* leave(leaving, hook, module, args, kwargs, output): the forward hook of a module. Where the call
   is not plain, `hook` does it. PyTorch may leave out `kwargs`, see hooks.module_hook.Keywords. */
static PyObject *leave(PyObject *module, PyObject *const *arguments, Py_ssize_t given) {
    (void)module;
    if (given < 5 || Py_TYPE(arguments[0]) != leaving_type) {
        PyErr_SetString(PyExc_TypeError, "leave takes a Leaving and what a forward hook is given");
        return NULL;
    }
    Leaving *self = (Leaving *)arguments[0];
    int recording = is_true(PyObject_GetAttr(self->listener, n_recording));
    if (recording < 1)
        return recording ? NULL : none();
    int plain = leave_plain(self, arguments[given - 1], NULL);
    if (plain)
        return plain < 0 ? NULL : none();
    return torchtap_pass_on(arguments, given);
}

/* enter_counted(numbers, hook, module, args): the forward pre-hook of a module that may call itself. */
static PyObject *enter_counted(PyObject *module, PyObject *const *arguments, Py_ssize_t given) {
    (void)module;
    if (given < 3 || Py_TYPE(arguments[0]) != numbers_type) {
        PyErr_SetString(PyExc_TypeError, "enter_counted takes CallNumbers, and what a pre-hook is given");
        return NULL;
    }
    PyObject *owner = PyObject_GetAttr(arguments[1], n_owner);
    int recording = owner ? is_true(PyObject_GetAttr(owner, n_recording)) : -1;
    Py_XDECREF(owner);
    if (recording < 1)
        return recording ? NULL : none();
    return numbers_enter(arguments[0], NULL);
}

/* ------------------------------------------------------------------------------- for root.c */

int torchtap_watched(PyObject *leaving, Watched *watched) {
    if (Py_TYPE(leaving) != leaving_type) {
        PyErr_SetString(PyExc_TypeError, "expected a Leaving, a hook, and what it is given");
        return -1;
    }
    const Leaving *self = (const Leaving *)leaving;
    const Gradients *gradients = (const Gradients *)self->gradients;
    *watched = (Watched){self->listener, self->busy, self->running, self->tap, self->calls,
                         gradients->followed, forward, gradients->borrows};
    return 0;
}

int torchtap_has_trained(PyObject *leaving) { return has_trained((Leaving *)leaving); }

int torchtap_is_of_plain_training(void) { return is_of_plain_training(); }

int torchtap_leave_plain(PyObject *leaving, PyObject *output, PyObject *number) {
    return leave_plain((Leaving *)leaving, output, number);
}

long long torchtap_next_number(PyObject *calls) { return next_number((Numbers *)calls); }

int torchtap_are_untouched(PyObject *views) {
    for (Py_ssize_t i = 0; i < PyList_Size(views); i++) {
        PyObject *view = PyList_GetItem(views, i);
        int lost = Py_TYPE(view) == followed_type
                       ? is_overwritten((Arrival *)((Followed *)view)->arrival)
                       : 1;
        if (lost)
            return lost < 0 ? -1 : 0;
    }
    return 1;
}

/* ------------------------------------------------------------------------------- for bulk.c */

PyObject *torchtap_new_meter(PyObject *clock, long long place, int replaces, int sums) {
    if (Py_TYPE(clock) != clock_type) {
        PyErr_SetString(PyExc_TypeError, "expected a native Clock");
        return NULL;
    }
    Meter *meter = (Meter *)new_meter(meter_type, clock, replaces);
    if (meter) {
        meter->place = place;
        meter->sums_samples = (char)sums;
    }
    return (PyObject *)meter;
}

PyObject *torchtap_new_state(PyObject *site, PyObject *copies, PyObject *meter) {
    return new_state(state_type, site, copies, meter ? meter : no_meter);
}

PyObject *torchtap_new_numbers(PyObject *steps) {
    if (Py_TYPE(steps) == steps_type)
        return steps_new_numbers(steps, NULL);
    PyErr_SetString(PyExc_TypeError, "expected a native StepCounter");
    return NULL;
}

int torchtap_is_plain_state(PyObject *state) {
    if (Py_TYPE(state) != state_type)
        return state == Py_None;
    PyObject *meter = ((State *)state)->meter;
    return meter && (meter == no_meter || Py_TYPE(meter) == meter_type);
}

PyObject *torchtap_new_leaving(PyObject *first, PyObject *tap, PyObject *calls, PyObject *output,
                               PyObject *gradient) {
    if (Py_TYPE(first) != leaving_type || Py_TYPE(calls) != numbers_type) {
        PyErr_SetString(PyExc_TypeError, "expected a Leaving, and native CallNumbers");
        return NULL;
    }
    const Leaving *like = (const Leaving *)first;
    MAKE(Leaving, leaving_type)
    self->listener = held(like->listener);
    self->busy = held(like->busy);
    self->running = held(like->running);
    self->gradients = held(like->gradients);
    self->policy = held(like->policy);
    self->tap = held(tap);
    self->calls = held(calls);
    self->output = held(output == Py_None ? NULL : output);
    self->gradient = held(gradient == Py_None ? NULL : gradient);
    PyObject_GC_Track((PyObject *)self);
    return (PyObject *)self;
}

/* --------------------------------------------- GraphPart: a hook that was traced into a graph */

/* States that were looked up, by the names that a graph gives. */
typedef struct {
    PyObject *port, *leaf;
    PyObject *state, *awaited; /* of the site, and of its gradient; NULL where none is awaited */
} Known;
enum { NUM_KNOWN = 2 }; /* an output and its gradient */

/* Twin of capture.compiled.Part, for values of plain training. The numbers on tickets lead to the parts,
   which nobody holds here. */
typedef struct GraphPart {
    PyObject_HEAD
    PyObject *listener, *running, *graph, *tap, *states, *steps, *ticket;
    Known known[NUM_KNOWN];
    struct GraphPart **shown_at; /* NULL, or where it was shown */
    long long number;
    char is_in_graph; /* as of the tap, which stays so */
} GraphPart;
#define KNOWN(do, op, at)                                                                          \
    do(op, GraphPart, known[at].port) do(op, GraphPart, known[at].leaf)                            \
    do(op, GraphPart, known[at].state) do(op, GraphPart, known[at].awaited)
#define GRAPH_PART(do, op)                                                                         \
    do(op, GraphPart, listener) do(op, GraphPart, running) do(op, GraphPart, graph)                \
    do(op, GraphPart, tap) do(op, GraphPart, states) do(op, GraphPart, steps)                      \
    do(op, GraphPart, ticket) KNOWN(do, op, 0) KNOWN(do, op, 1)
LIFE(GraphPart, GRAPH_PART)

static GraphPart **graph_parts;
static long long num_graph_parts;

/* Parts by the object that is their ticket, of which a part holds its own: most are found here,
   without a look at the tensor. */
enum { NUM_SHOWN = 1 << 12 };
static GraphPart *shown[NUM_SHOWN];

static GraphPart **place_of(const PyObject *ticket) {
    return shown + (((uintptr_t)ticket >> 4) * 0x9E3779B1u >> 8) % NUM_SHOWN;
}

static int make_room(long long number) {
    long long room = num_graph_parts ? num_graph_parts : 64;
    while (room <= number)
        room *= 2;
    if (number < num_graph_parts)
        return 0;
    GraphPart **more = PyMem_Realloc(graph_parts, sizeof *more * (size_t)room);
    if (!more) {
        PyErr_NoMemory();
        return -1;
    }
    memset(more + num_graph_parts, 0, sizeof *more * (size_t)(room - num_graph_parts));
    graph_parts = more;
    num_graph_parts = room;
    return 0;
}

static PyObject *graph_part_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *given[6], *numbers;
    long long number;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "LOOOOOO!O!:GraphPart", &number, given, given + 1, given + 2,
                          given + 3, given + 4, &PyDict_Type, given + 5, numbers_type, &numbers))
        return NULL;
    if (number < 0 || make_room(number))
        return NULL;
    MAKE(GraphPart, type)
    PyObject **members[] = {&self->ticket, &self->listener, &self->running,
                            &self->graph,  &self->tap,      &self->states};
    for (int i = 0; i < 6; i++)
        *members[i] = held(given[i]);
    self->steps = held(((Numbers *)numbers)->steps);
    self->number = number;
    graph_parts[number] = self;
    PyObject_GC_Track((PyObject *)self);
    return (PyObject *)self;
}

/* From now on no ticket leads to the part. The collector has it done before it clears anything that the
   part refers to, while graphs of other threads still have the ticket. */
static void graph_part_finalize(PyObject *op) {
    GraphPart *self = (GraphPart *)op;
    if (graph_parts[self->number] == self)
        graph_parts[self->number] = NULL;
    if (self->shown_at && *self->shown_at == self)
        *self->shown_at = NULL;
    self->shown_at = NULL;
}

static void graph_part_free(PyObject *op) {
    graph_part_finalize(op);
    GraphPart_dealloc(op);
}

static PyType_Slot graph_part_slots[] = {
    {Py_tp_new, graph_part_new},         {Py_tp_traverse, GraphPart_traverse},
    {Py_tp_clear, GraphPart_clear},      {Py_tp_dealloc, graph_part_free},
    {Py_tp_finalize, graph_part_finalize}, {0, NULL},
};

/* Facts that a graph hands over besides the value. */
typedef struct {
    PyObject *port, *leaf;
    int is_gradient, awaits; /* whether it is a gradient; whether its own gradient will come */
} Handed;

/* The part with the number on a ticket; NULL where there is none that takes values here. */
static GraphPart *part_by_number(PyObject *ticket) {
    DLTensor tensor;
    if (Py_TYPE(ticket) != tensor_type)
        return NULL;
    if (exchange->look(ticket, &tensor)) {
        PyErr_Clear();
        return NULL;
    }
    if (tensor.device_type != CPU || tensor.ndim || tensor.dtype.bits != 64 || !tensor.data)
        return NULL;
    int64_t number = *(const int64_t *)((const char *)tensor.data + tensor.byte_offset);
    return number >= 0 && number < num_graph_parts ? graph_parts[number] : NULL;
}

/* The part that a ticket belongs to. */
static GraphPart *part_of(PyObject *ticket) {
    GraphPart **at = place_of(ticket), *part = *at;
    if (!part || part->ticket != ticket) {
        part = part_by_number(ticket);
        if (part && part->ticket == ticket)
            *(part->shown_at = at) = part;
    }
    return part && part->listener ? part : NULL;
}

/* The state of a site, as Tap.state; NULL where it is not wanted or not known yet. */
static PyObject *state_at(const GraphPart *part, PyObject *port, PyObject *leaf) {
    PyObject *key = PyTuple_Pack(2, port, leaf);
    PyObject *state = key ? PyDict_GetItemWithError(part->states, key) : NULL;
    Py_XDECREF(key);
    return state && Py_TYPE(state) == state_type ? held(state) : NULL;
}

static void set(PyObject **member, PyObject *value) {
    PyObject *before = *member;
    *member = value;
    Py_XDECREF(before);
}

static int has_states(const Known *known, const Handed *handed) {
    return known->state && (known->awaited || !handed->awaits);
}

static void drop(const Known *known) {
    Py_XDECREF(known->port);
    Py_XDECREF(known->leaf);
    Py_XDECREF(known->state);
    Py_XDECREF(known->awaited);
}

/* The states of what is handed over, held, where they are known yet. A tap never changes them, and a
   graph gives the same names, which are the same objects, each time. Threads that run one graph come
   here at once: the part's own are replaced together. */
static Known known_of(GraphPart *part, const Handed *handed) {
    Known *kept = part->known + handed->is_gradient, before = {0};
    if (kept->port != handed->port || kept->leaf != handed->leaf || !has_states(kept, handed)) {
        PyObject *state = state_at(part, handed->port, handed->leaf);
        PyObject *awaited = handed->awaits ? state_at(part, n_grad_output, handed->leaf) : NULL;
        before = *kept;
        *kept = (Known){held(handed->port), held(handed->leaf), state, awaited};
    }
    Known known = {NULL, NULL, held(kept->state), held(kept->awaited)};
    drop(&before);
    return known;
}

static int is_set(PyObject *object, PyObject *name) {
    return is_true(PyObject_GetAttr(object, name)) == 1;
}

/* Whether a phase is `forward`; takes it over. */
static int is_forward(PyObject *phase) {
    int is = phase && (phase == forward ||
                       (PyUnicode_Check(phase) &&
                        !PyUnicode_CompareWithASCIIString(phase, "forward")));
    Py_XDECREF(phase);
    return is;
}

/* Whether a value is of a forward that trains, as WatchedCalls.phase_in_graph. */
static int is_of_forward(const GraphPart *part) {
    PyObject *stack = PyObject_GetAttr(part->running, n_stack);
    PyObject *outermost = stack && PyList_Check(stack) && PyList_Size(stack)
                              ? PyList_GetItem(stack, 0)
                              : part->graph;
    int is = is_forward(stack ? PyObject_GetAttr(outermost, n_phase) : NULL);
    Py_XDECREF(stack);
    return is;
}

/* Whether the running step is known to train, with its state taken: it stays so to its end. */
static int is_training(const GraphPart *part) {
    Steps *steps = (Steps *)part->steps;
    if (steps->of_graphs == steps->current)
        return 1;
    long long current = steps->current; /* Another thread may begin a step meanwhile. */
    PyObject *step = PyObject_GetAttr(part->listener, n_step);
    long long number = step ? PyLong_AsLongLong(step) : -1;
    Py_XDECREF(step);
    if (PyErr_Occurred() || !is_set(part->listener, n__is_state_taken) ||
        !is_set(part->listener, n__has_trained))
        return 0;
    steps->number = number;
    steps->of_graphs = current;
    return 1;
}

static int is_in_graph(GraphPart *part) {
    if (!part->is_in_graph)
        part->is_in_graph = (char)is_set(part->tap, n_is_in_graph);
    return part->is_in_graph;
}

/* Measures a value whose states are known. */
static int take_known(const GraphPart *part, PyObject *value, const Handed *handed,
                      const Known *known, PyObject **same) {
    State *state = (State *)known->state;
    PyObject *meter = held(state->meter);
    int could = meter && Py_TYPE(meter) == meter_type
                    ? measure((Meter *)meter, value, ((Steps *)part->steps)->number,
                              (const Meter *)*same)
                    : 0;
    if (could == 1) {
        set(same, held(meter));
        state->seen = 1;
        state->received += handed->is_gradient;
        if (handed->awaits)
            ((State *)known->awaited)->expected++;
    }
    Py_XDECREF(meter);
    return could;
}

/* Takes a value for one part: 1, or 0 where nothing was noted and Python has to, which asks again where
   a question raised. While nothing is recorded, nothing is to be done. `same`: the meter that has just
   measured the value, held. */
static int take_plain(GraphPart *part, PyObject *value, const Handed *handed, PyObject **same) {
    int recording = is_true(PyObject_GetAttr(part->listener, n_recording));
    if (recording < 1)
        return !recording;
    if (!is_training(part) || !is_in_graph(part) || (!handed->is_gradient && !is_of_forward(part)))
        return 0;
    Known known = known_of(part, handed);
    int could = has_states(&known, handed) ? take_known(part, value, handed, &known, same) : 0;
    drop(&known);
    return could;
}

/* Reads what is handed over; 0 where it is not plain. */
static int read_handed(PyObject *const *arguments, Handed *handed) {
    PyObject *note = arguments[4];
    handed->port = arguments[2];
    handed->leaf = arguments[3];
    if (Py_TYPE(arguments[0]) != tensor_type || arguments[5] != Py_True ||
        !PyUnicode_Check(handed->port) || !PyUnicode_Check(note))
        return 0;
    handed->is_gradient = handed->port == n_grad_output ||
                          !PyUnicode_CompareWithASCIIString(handed->port, "grad_output");
    handed->awaits = !PyUnicode_CompareWithASCIIString(note, "awaited");
    return handed->awaits || !PyUnicode_GetLength(note);
}

/* Hands a value over to the owner of one ticket: natively, or by Python. */
static int hand_to(PyObject *ticket, PyObject *by_python, PyObject *const *own, const Handed *handed,
                   PyObject **same) {
    GraphPart *part = handed ? part_of(ticket) : NULL;
    Py_XINCREF((PyObject *)part);
    int could = part ? take_plain(part, own[0], handed, same) : 0;
    Py_XDECREF((PyObject *)part);
    if (could < 0 || forgive())
        return -1;
    if (could)
        return 0;
    PyObject *answer = PyObject_CallFunctionObjArgs(by_python, own[0], ticket, own[2], own[3], own[4],
                                                    own[5], NULL);
    Py_XDECREF(answer);
    set(same, NULL); /* Python may have measured something else. */
    return answer ? 0 : -1;
}

/* hand_over_known(by Python, value, tickets, port, leaf, note, trains), as capture.compiled.hand_over: a
   value of a compiled graph, for the owners of all tickets. `by Python` is for one ticket. */
static PyObject *hand_over_known(PyObject *module, PyObject *const *arguments, Py_ssize_t given) {
    (void)module;
    if (given != 7 || !PyTuple_Check(arguments[2])) {
        PyErr_SetString(PyExc_TypeError, "hand_over_known takes what a compiled graph hands over");
        return NULL;
    }
    Handed handed = {0};
    PyObject *const *own = arguments + 1;
    PyObject *same = NULL;
    int is_plain = read_handed(own, &handed), failed = 0;
    for (Py_ssize_t i = 0; !failed && i < PyTuple_Size(own[1]); i++)
        failed = hand_to(PyTuple_GetItem(own[1], i), arguments[0], own, is_plain ? &handed : NULL,
                         &same);
    Py_XDECREF(same);
    return failed ? NULL : none();
}

/* -------------------------------------------------------------------------------- the Python door */

/* Keeps what is handed in, from the place `first` on. */
static int keep(PyObject *arguments, Py_ssize_t first, PyObject **const *bound, Py_ssize_t count) {
    if (PyTuple_Size(arguments) != first + count) {
        PyErr_Format(PyExc_TypeError, "expected %zd arguments", first + count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *before = *bound[i];
        *bound[i] = held(PyTuple_GetItem(arguments, first + i));
        Py_XDECREF(before);
    }
    return 0;
}

/* Whether tensors can be read by the table of C functions that their class has. */
static PyObject *bind_tensors(PyObject *module, PyObject *arguments) {
    PyObject *capsule = PyTuple_GetItem(arguments, 0);
    (void)module;
    const Exchange *found =
        capsule ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;
    if (!found)
        return NULL;
    if (found->major != 1 || !found->look)
        return boolean(0);
    if (keep(arguments, 1, OF_TENSORS, LENGTH(OF_TENSORS)))
        return NULL;
    exchange = found;
    return boolean(1);
}

static PyObject *bind_calls(PyObject *module, PyObject *arguments) {
    (void)module;
    return keep(arguments, 0, OF_CALLS, LENGTH(OF_CALLS)) ? NULL : none();
}

/* bind_first_calls(an iterator over the numbers of first calls). */
static PyObject *bind_first_calls(PyObject *module, PyObject *numbers) {
    PyObject *before = first_calls;
    (void)module;
    first_calls = held(numbers);
    Py_XDECREF(before);
    return none();
}

static PyMethodDef functions[] = {
    {"bind_first_calls", bind_first_calls, METH_O, "bind_first_calls(numbers): see hooks.tap"},
    {"bind_tensors", bind_tensors, METH_VARARGS,
     "bind_tensors(exchange, Tensor, Parameter, is_neg, get_num_threads) -> whether it is known"},
    {"bind_calls", bind_calls, METH_VARARGS,
     "bind_calls(current_task, top_saved_hooks, transform_running, tracing_state, "
     "sequence_number, detach, GradHook, OrderedDict, no_meter, Record, FORWARD, "
     "is_legacy_batched, is_of_transform)"},
    {"leave", (PyCFunction)(void (*)(void))leave, METH_FASTCALL,
     "leave(leaving, hook, module, args, kwargs, output): a forward hook"},
    {"enter_counted", (PyCFunction)(void (*)(void))enter_counted, METH_FASTCALL,
     "enter_counted(numbers, hook, module, args): a forward pre-hook"},
    {"hand_over_known", (PyCFunction)(void (*)(void))hand_over_known, METH_FASTCALL,
     "hand_over_known(by Python, value, tickets, port, leaf, note, trains): a value of a compiled graph"},
    {NULL, NULL, 0, NULL},
};

int torchtap_add_calls(PyObject *module) {
    static const unsigned int flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
    static const unsigned int own = Py_TPFLAGS_DISALLOW_INSTANTIATION; /* made here alone */
    static const unsigned int without = Py_TPFLAGS_HAVE_GC; /* taken away */
    struct {
        const char *name;
        PyTypeObject **type;
        size_t size;
        PyType_Slot *slots;
        unsigned int more;
    } types[] = {
#define ROW(name, type, var, slots, more)                                                          \
    {"torchtap.stats.kernels._kernel." name, &var, sizeof(type), slots, more}
        ROW("Clock", Clock, clock_type, clock_slots, 0),
        ROW("Meter", Meter, meter_type, meter_slots, without),
        ROW("SiteState", State, state_type, state_slots, 0),
        ROW("Gradients", Gradients, gradients_type, gradients_slots, 0),
        ROW("Arrival", Arrival, arrival_type, arrival_slots, own),
        ROW("FollowedView", Followed, followed_type, followed_slots, own),
        ROW("StepCounter", Steps, steps_type, steps_slots, without),
        ROW("CallNumbers", Numbers, numbers_type, numbers_slots, own | without),
        ROW("Leaving", Leaving, leaving_type, leaving_slots, 0),
        ROW("GraphPart", GraphPart, graph_part_type, graph_part_slots, 0),
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        PyType_Spec spec = {types[i].name, (int)types[i].size, 0, flags ^ types[i].more,
                            types[i].slots};
        if (add_type(module, &spec, types[i].type))
            return -1;
    }
    NAMES(INTERN)
    if (PyModule_AddIntConstant(module, "INTERFACE", TORCHTAP_INTERFACE))
        return -1;
    return PyModule_AddFunctions(module, functions);
}
