/* What tt.offload does with each saved tensor: its layout is found, the graph gets an object for it,
 * and its bytes are written to a file and read back.
 *
 * For torchtap.saved.native_blocks, which says what each has in Python as its twin. Whatever a
 * function cannot read here, it leaves to Python. Nothing here knows of libtorch: see tensors.h.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>
#ifndef _WIN32
#include <unistd.h>
#endif

#include "calls.h"
#include "tensors.h"

enum { CPU = 1, CUDA = 2, COMPLEX = 5, MOST_DIMS = 64, MOST_LAYOUTS = 4096 };

static const Exchange *exchange;
static PyObject *tensor_type, *parameter_type, *is_of_transform, *is_neg, *layout_of;
static PyObject **const BOUND[] = {&tensor_type, &parameter_type, &is_of_transform, &is_neg,
                                   &layout_of};
enum { NUM_BOUND = sizeof BOUND / sizeof *BOUND };

static PyObject *known; /* a dict: bytes -> layout */
static PyObject *n_append, *n_drop, *resident, *freed, *zero, *none_yet;

static PyObject *boolean(int value) {
    PyObject *answer = value ? Py_True : Py_False;
    Py_INCREF(answer);
    return answer;
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

/* Bytes that are equal for two tensors of one layout. NULL for one that Python is to look at; with
   an exception only where one was raised. */
static PyObject *key_of(PyObject *object) {
    DLTensor tensor;
    if ((PyObject *)Py_TYPE(object) != tensor_type && (PyObject *)Py_TYPE(object) != parameter_type)
        return NULL;
    if (denies(is_of_transform, object) != 1 || denies(is_neg, object) != 1 || !look(object, &tensor))
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
    PyObject *key = key_of(tensor);
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

/* As torchtap.saved.saved_block.SavedBlock and its BlockRef in one: weak references to it are dead
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
    Py_INCREF(self->state = resident);
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
    PyObject *before = self->state; /* From here on nobody takes it for one that lives. */
    Py_INCREF(self->state = freed);
    Py_DECREF(before);
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
#define FIXED(member) {#member, T_OBJECT, offsetof(Block, member), READONLY, NULL},
static PyMemberDef block_members[] = {
    MEMBER(alias) FIXED(layout) FIXED(storage) FIXED(identity) FIXED(memory) SET(MEMBER)
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
    return 0; /* Python does it there. */
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

static PyObject *move(PyObject *const *arguments, Py_ssize_t count, int writes) {
    if (count != 4)
        return PyErr_Format(PyExc_TypeError, "expected 4 arguments");
    long file = PyLong_AsLong(arguments[0]);
    long long nbytes = PyLong_AsLongLong(arguments[2]), offset = PyLong_AsLongLong(arguments[3]);
    if (PyErr_Occurred())
        return NULL;
    char *data = memory_of(arguments[1], nbytes);
    int has_moved = data ? transfer((int)file, data, nbytes, offset, writes) : 0;
    return has_moved < 0 ? NULL : boolean(has_moved);
}

static PyObject *write_elements(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    (void)module;
    return move(arguments, count, 1);
}

static PyObject *read_elements(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    (void)module;
    return move(arguments, count, 0);
}

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
     "bind_saved(exchange, Tensor, Parameter, is_of_transform, is_neg, layout_of) -> bool"},
    {"find_layout", find_layout, METH_O, "find_layout(tensor) -> layout_of(tensor)"},
    {"write_elements", FAST(write_elements),
     "write_elements(file, elements, nbytes, offset) -> False for elements it cannot read"},
    {"read_elements", FAST(read_elements),
     "read_elements(file, elements, nbytes, offset) -> False for elements it cannot write to"},
    {NULL, NULL, 0, NULL},
};

int torchtap_add_saved(PyObject *module) {
    PyObject *type = PyType_FromSpec(&block_spec);
    if (!type || PyModule_AddObject(module, "SavedBlock", type))
        return -1;
    known = PyDict_New();
    n_append = PyUnicode_InternFromString("append");
    n_drop = PyUnicode_InternFromString("drop");
    resident = PyUnicode_InternFromString("resident");
    freed = PyUnicode_InternFromString("freed");
    zero = PyLong_FromLong(0);
    none_yet = PyLong_FromLong(-1);
    if (!known || !n_append || !n_drop || !resident || !freed || !zero || !none_yet)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
