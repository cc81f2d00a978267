/* The rows of a table on the CPU, each for what is at one place of a step: native.TableBlocks.
 *
 * Python makes the blocks of rows, and this gives rows out: to Python, or to a meter in calls.c that
 * meets its first tensor. The caller holds the lock of the table's sink.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>

#include "calls.h"

enum { ROW_BYTES = 128, HISTOGRAM_BYTES = 8192 * 8 };

typedef struct {
    PyObject_HEAD
    PyObject *new_block; /* new_block(): has a block added, where the last one is full */
    PyObject *held;      /* a list of the memory of all blocks */
    Measured *blocks;
    long long num_blocks, room, block_size, num_places;
} Table;
#define TABLE(do, op) do(op, Table, new_block) do(op, Table, held)
LIFE(Table, TABLE)

static PyTypeObject *table_type;

static PyObject *table_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *new_block;
    long long block_size;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "OL:Table", &new_block, &block_size))
        return NULL;
    MAKE(Table, type)
    self->new_block = held(new_block);
    self->held = PyList_New(0);
    self->block_size = block_size;
    PyObject_GC_Track((PyObject *)self);
    if (!self->held)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void table_free(PyObject *op) {
    PyMem_Free(((Table *)op)->blocks);
    Table_dealloc(op);
}

static int make_room(Table *self) {
    if (self->num_blocks < self->room)
        return 0;
    long long room = self->room ? 2 * self->room : 1;
    Measured *more = PyMem_Realloc(self->blocks, sizeof *more * (size_t)room);
    if (!more) {
        PyErr_NoMemory();
        return -1;
    }
    self->blocks = more;
    self->room = room;
    return 0;
}

/* add_block(rows, histograms or 0, lists or 0, places, the memory of these): addresses. */
static PyObject *table_add_block(PyObject *op, PyObject *arguments) {
    Table *self = (Table *)op;
    long long rows, histograms, lists, places;
    PyObject *memory;
    if (!PyArg_ParseTuple(arguments, "LLLLO:add_block", &rows, &histograms, &lists, &places, &memory) ||
        make_room(self) || PyList_Append(self->held, memory))
        return NULL;
    self->blocks[self->num_blocks++] = (Measured){rows, histograms, lists, places, 0};
    return none();
}

static int has_room(const Table *self) {
    return self->num_blocks && self->blocks[self->num_blocks - 1].num_rows < self->block_size;
}

long long torchtap_add_row(PyObject *table, long long place, Aim *aim) {
    Table *self = (Table *)table;
    if (!has_room(self)) {
        PyObject *answer = PyObject_CallNoArgs(self->new_block);
        Py_XDECREF(answer);
        if (!answer)
            return -1;
    }
    if (!has_room(self)) {
        PyErr_SetString(PyExc_RuntimeError, "no block was added");
        return -1;
    }
    Measured *block = self->blocks + self->num_blocks - 1;
    long long index = block->num_rows;
    ((int64_t *)(intptr_t)block->places)[index] = place;
    memset(aim, 0, sizeof *aim);
    aim->row = block->rows + index * ROW_BYTES;
    aim->histogram = block->histograms ? block->histograms + index * HISTOGRAM_BYTES : 0;
    aim->lists = block->lists;
    aim->owner = index;
    block->num_rows = index + 1; /* From now on the row is read. */
    if (self->num_places <= place)
        self->num_places = place + 1;
    return (self->num_blocks - 1) * self->block_size + index;
}

int torchtap_is_table(PyObject *object) { return object && Py_TYPE(object) == table_type; }

/* add_row(place) -> which row of the table is for what is there. */
static PyObject *table_add_row(PyObject *op, PyObject *place) {
    Aim aim;
    long long at = PyLong_AsLongLong(place);
    long long row = at == -1 && PyErr_Occurred() ? -1 : torchtap_add_row(op, at, &aim);
    return row < 0 ? NULL : PyLong_FromLongLong(row);
}

/* close(into): see native.TableBlocks.close. */
static PyObject *table_close(PyObject *op, PyObject *into) {
    const Table *self = (const Table *)op;
    PyObject *taken = PyTuple_New(7); /* First: the collector may run, and code that adds a block. */
    int failed = !taken || torchtap_close_blocks(self->blocks, self->num_blocks, self->num_places,
                                                 taken, into);
    Py_XDECREF(taken);
    return failed ? NULL : none();
}

static PyMethodDef table_methods[] = {
    {"add_block", table_add_block, METH_VARARGS,
     "add_block(rows, histograms, lists, places, memory): addresses, and what is to be kept alive"},
    {"add_row", table_add_row, METH_O, "add_row(place) -> row"},
    {"close", table_close, METH_O, "close(into): hands on what was measured, and begins again"},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef table_members[] = {
    {"num_blocks", T_LONGLONG, offsetof(Table, num_blocks), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot table_slots[] = {
    {Py_tp_new, table_new},          {Py_tp_methods, table_methods},
    {Py_tp_members, table_members},  {Py_tp_traverse, Table_traverse},
    {Py_tp_clear, Table_clear},      {Py_tp_dealloc, table_free},
    {0, NULL},
};

int torchtap_add_rows(PyObject *module) {
    PyType_Spec spec = {"torchtap.stats.kernels._kernel.Table", sizeof(Table), 0,
                        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, table_slots};
    return add_type(module, &spec, &table_type);
}
