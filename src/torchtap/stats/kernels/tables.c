/* Our hooks in the tables of modules, hidden from copies: hooks/hidden_handle.py, natively.
 *
 * A watch around one forward puts three entries on each module and takes them off again. What is rare
 * (a hook that rests, a copy of a table) is done by the methods of `hidden_handle.OwnEntries`, which
 * are those of both kinds of entries. The caller holds `tables_lock`.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>

#include "calls.h"

/* Names of the tables of a module: of hooks, then those in which PyTorch notes how to call one. */
#define NAMES(name)                                                                                \
    name(_forward_pre_hooks) name(_forward_pre_hooks_with_kwargs) name(_forward_hooks)             \
    name(_forward_hooks_with_kwargs) name(_forward_hooks_always_called) name(__deepcopy__)         \
    name(__reduce_ex__) name(with_kwargs) name(always_call) name(keys) name(remove) name(rest)     \
    name(wake) name(_forget)
#define DECLARE(name) static PyObject *n_##name;
NAMES(DECLARE)

static PyTypeObject *entries_type, *handle_type;
/* What Python hands in: the subclass of Entries, its base class, and hook_order.put_by_role. */
static PyObject *own_type, *any_own, *put_by_role;

static PyObject *none(void) {
    Py_IncRef(Py_None);
    return Py_None;
}

/* ------------------------------------------------------------------- Entries, as _PlainEntries */

typedef struct {
    PyObject_HEAD
    PyObject *_table; /* a weak reference: a model that is dropped is gone at once */
    PyObject *keys, *_resting, *_order;
} Entries;
#define ENTRIES(do, op)                                                                            \
    do(op, Entries, _table) do(op, Entries, keys) do(op, Entries, _resting) do(op, Entries, _order)
LIFE(Entries, ENTRIES)

static PyMemberDef entries_members[] = {
    OBJECT(Entries, _table), OBJECT(Entries, keys), OBJECT(Entries, _resting),
    OBJECT(Entries, _order), {NULL, 0, 0, 0, NULL},
};
static PyType_Slot entries_slots[] = {
    {Py_tp_members, entries_members}, LIFE_SLOTS(Entries), {0, NULL},
};

/* Makes the entries of a table of which none is ours, and puts them on it. */
static PyObject *new_entries(PyObject *table, PyObject *attributes) {
    MAKE(Entries, (PyTypeObject *)own_type)
    self->_table = PyWeakref_NewRef(table, NULL);
    self->keys = PyTuple_New(0);
    PyObject_GC_Track((PyObject *)self);
    if (!self->_table || !self->keys ||
        PyDict_SetItem(attributes, n___deepcopy__, (PyObject *)self) ||
        PyDict_SetItem(attributes, n___reduce_ex__, (PyObject *)self))
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* Returns the entries of a table, as OwnEntries.of. */
static PyObject *entries_of(PyObject *table) {
    PyObject *attributes = PyObject_GenericGetDict(table, NULL);
    if (!attributes)
        return NULL;
    PyObject *own = held(PyDict_GetItemWithError(attributes, n___reduce_ex__));
    int is_own = !own                                ? 0
                 : Py_TYPE(own) == (PyTypeObject *)own_type ? 1
                                                     : PyObject_IsInstance(own, any_own);
    if (is_own < 1) {
        Py_CLEAR(own);
        if (is_own == 0 && !PyErr_Occurred())
            own = new_entries(table, attributes);
    }
    Py_DECREF(attributes);
    return own;
}

/* Notes a key among the entries of a table, and returns them. */
static PyObject *note_key(PyObject *table, PyObject *key) {
    PyObject *own = entries_of(table), *keys = own ? PyObject_GetAttr(own, n_keys) : NULL;
    PyObject *added = keys ? PyTuple_Pack(1, key) : NULL, *more = NULL;
    if (added)
        more = PyTuple_Size(keys) ? PySequence_Concat(keys, added) : held(added);
    if (!more || PyObject_SetAttr(own, n_keys, more))
        Py_CLEAR(own);
    Py_XDECREF(keys);
    Py_XDECREF(added);
    Py_XDECREF(more);
    return own;
}

/* Returns the keys without one; NULL with an exception. */
static PyObject *without(PyObject *keys, PyObject *key) {
    PyObject *left = PyList_New(0), *others = NULL;
    for (Py_ssize_t i = 0; left && i < PyTuple_Size(keys); i++) {
        PyObject *other = PyTuple_GetItem(keys, i);
        int differs = PyObject_RichCompareBool(other, key, Py_NE);
        if (differs < 0 || (differs && PyList_Append(left, other)))
            Py_CLEAR(left);
    }
    others = left ? PyList_AsTuple(left) : NULL;
    Py_XDECREF(left);
    return others;
}

static int take_off(PyObject *table) {
    PyObject *attributes = PyObject_GenericGetDict(table, NULL);
    int failed = !attributes || PyDict_DelItem(attributes, n___deepcopy__) ||
                 PyDict_DelItem(attributes, n___reduce_ex__);
    Py_XDECREF(attributes);
    return failed ? -1 : 0;
}

/* Takes an entry away, as OwnEntries.remove. */
static int remove_entry(PyObject *own, PyObject *key) {
    Entries *self = (Entries *)own;
    PyObject *table = held(PyWeakref_GetObject(self->_table)), *answer = NULL;
    if (!table || table == Py_None) {
        Py_XDECREF(table);
        return table ? 0 : -1;
    }
    int failed, is_there = PySequence_Contains(table, key);
    failed = is_there < 0 || (is_there && PyObject_DelItem(table, key));
    if (!failed && self->_resting && PyObject_IsTrue(self->_resting))
        failed = !(answer = PyObject_CallMethodObjArgs(own, n__forget, key, NULL));
    PyObject *left = failed ? NULL : without(self->keys, key);
    if (left) {
        PyObject *before = self->keys;
        self->keys = left;
        Py_XDECREF(before);
        failed = PyTuple_Size(left) == 0 && take_off(table);
    }
    Py_XDECREF(answer);
    Py_DECREF(table);
    return left && !failed ? 0 : -1;
}

/* -------------------------------------------------------------------- Handle, as HiddenHandle */

enum { MOST_TABLES = 3 };
typedef struct {
    PyObject_HEAD
    PyObject *id, *first, *second, *third; /* the key; entries of the tables, that of hooks first */
} Handle;
#define HANDLE(do, op)                                                                             \
    do(op, Handle, id) do(op, Handle, first) do(op, Handle, second) do(op, Handle, third)
LIFE(Handle, HANDLE)

static PyObject *handle_remove(PyObject *op, PyObject *unused) {
    Handle *self = (Handle *)op;
    PyObject *every[MOST_TABLES] = {self->first, self->second, self->third};
    int failed = 0;
    (void)unused;
    self->first = self->second = self->third = NULL;
    for (int i = 0; i < MOST_TABLES; i++) {
        if (every[i] && !failed && Py_TYPE(every[i]) == (PyTypeObject *)own_type)
            failed = remove_entry(every[i], self->id);
        else if (every[i] && !failed) {
            PyObject *answer = PyObject_CallMethodObjArgs(every[i], n_remove, self->id, NULL);
            failed = !answer;
            Py_XDECREF(answer);
        }
        Py_XDECREF(every[i]);
    }
    return failed ? NULL : none();
}

static PyObject *tell_first(Handle *self, PyObject *what) {
    return self->first ? PyObject_CallMethodObjArgs(self->first, what, self->id, NULL) : none();
}

static PyObject *handle_rest(PyObject *op, PyObject *unused) {
    (void)unused;
    return tell_first((Handle *)op, n_rest);
}

static PyObject *handle_wake(PyObject *op, PyObject *unused) {
    (void)unused;
    return tell_first((Handle *)op, n_wake);
}

static PyMethodDef handle_methods[] = {
    {"remove", handle_remove, METH_NOARGS, "Take the hook off."},
    {"rest", handle_rest, METH_NOARGS, "Take the hook out of its table for a while."},
    {"wake", handle_wake, METH_NOARGS, "Put the hook back."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef handle_members[] = {FIXED(Handle, id), {NULL, 0, 0, 0, NULL}};
static PyType_Slot handle_slots[] = {
    {Py_tp_methods, handle_methods}, {Py_tp_members, handle_members}, LIFE_SLOTS(Handle), {0, NULL},
};

/* ------------------------------------------------------------------------- hooks into their tables */

/* Notes a hook in one of the tables of a module; takes over nothing. */
static int put_one(PyObject *module, PyObject *name, PyObject *key, PyObject *entry,
                   PyObject **entries, PyObject **table) {
    PyObject *found = PyObject_GetAttr(module, name);
    int failed = !found || !(*entries = note_key(found, key)) ||
                 (entry && PyObject_SetItem(found, key, entry));
    if (table && !failed)
        *table = held(found);
    Py_XDECREF(found);
    return failed ? -1 : 0;
}

static int is_set(PyObject *hook, PyObject *name) {
    PyObject *answer = PyObject_GetAttr(hook, name);
    int is = answer ? answer == Py_True : -1;
    Py_XDECREF(answer);
    return is;
}

/* Puts a hook into its tables, as HiddenHandle.put_in; returns its handle. The table of hooks comes
   last: a call in another thread looks at what is noted of each hook. */
static PyObject *put_hook(PyObject *module, PyObject *hook, PyObject *key, int is_pre) {
    PyObject *table = NULL, *answer = NULL;
    int with_kwargs = is_set(hook, n_with_kwargs);
    int always = is_pre ? 0 : is_set(hook, n_always_call);
    if (with_kwargs < 0 || always < 0)
        return NULL;
    MAKE(Handle, handle_type)
    self->id = held(key);
    PyObject_GC_Track((PyObject *)self);
    PyObject *names[] = {is_pre ? n__forward_pre_hooks : n__forward_hooks,
                         is_pre ? n__forward_pre_hooks_with_kwargs : n__forward_hooks_with_kwargs};
    int failed = put_one(module, names[0], key, NULL, &self->first, &table) ||
                 (with_kwargs && put_one(module, names[1], key, Py_True, &self->second, NULL)) ||
                 (always && put_one(module, n__forward_hooks_always_called, key, Py_True,
                                    &self->third, NULL)) ||
                 PyObject_SetItem(table, key, hook);
    Py_ssize_t size = failed ? -1 : PyObject_Size(table);
    if (size > 1)
        failed = !(answer = PyObject_CallFunctionObjArgs(put_by_role, table, key, NULL));
    Py_XDECREF(answer);
    Py_XDECREF(table);
    if (failed || size < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* Puts one hook on a module unless it is None, and its handle into the lists. */
static int put_one_hook(PyObject *module, PyObject *hook, PyObject *key, int is_pre,
                        PyObject *handles, PyObject *on_modules) {
    if (hook == Py_None)
        return 0;
    PyObject *handle = put_hook(module, hook, key, is_pre);
    int failed = !handle || PyList_Append(handles, handle) || PyList_Append(on_modules, handle);
    Py_XDECREF(handle);
    return failed ? -1 : 0;
}

/* put_on(rows of (module, pre-hook or None, hook or None), key, handles of pre-hooks, of hooks, of
   both), as CallFollower.put_on for each row. */
static PyObject *put_on(PyObject *unused, PyObject *arguments) {
    PyObject *rows, *key, *pre_handles, *handles, *both, *module, *pre_hook, *hook;
    (void)unused;
    if (!PyArg_ParseTuple(arguments, "O!OO!O!O!:put_on", &PyList_Type, &rows, &key, &PyList_Type,
                          &pre_handles, &PyList_Type, &handles, &PyList_Type, &both))
        return NULL;
    for (Py_ssize_t i = 0; i < PyList_Size(rows); i++) {
        if (!PyArg_ParseTuple(PyList_GetItem(rows, i), "OOO", &module, &pre_hook, &hook) ||
            put_one_hook(module, pre_hook, key, 1, pre_handles, both) ||
            put_one_hook(module, hook, key, 0, handles, both))
            return NULL;
    }
    return none();
}

/* bind_tables(subclass of Entries, base of all entries, put_by_role). */
static PyObject *bind_tables(PyObject *module, PyObject *arguments) {
    PyObject *given[3];
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOO:bind_tables", given, given + 1, given + 2))
        return NULL;
    own_type = held(given[0]);
    any_own = held(given[1]);
    put_by_role = held(given[2]);
    return none();
}

static PyMethodDef functions[] = {
    {"bind_tables", bind_tables, METH_VARARGS,
     "bind_tables(subclass of Entries, base of all entries, put_by_role)"},
    {"put_on", put_on, METH_VARARGS,
     "put_on(rows, key, pre_handles, handles, both): hooks of ours on modules"},
    {NULL, NULL, 0, NULL},
};

int torchtap_add_tables(PyObject *module) {
    static const unsigned int flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
    PyType_Spec of_entries = {"torchtap.stats.kernels._kernel.Entries", sizeof(Entries), 0,
                              flags | Py_TPFLAGS_BASETYPE, entries_slots};
    PyType_Spec of_handle = {"torchtap.stats.kernels._kernel.Handle", sizeof(Handle), 0,
                             flags | Py_TPFLAGS_DISALLOW_INSTANTIATION, handle_slots};
    entries_type = (PyTypeObject *)PyType_FromSpec(&of_entries);
    handle_type = (PyTypeObject *)PyType_FromSpec(&of_handle);
    if (!entries_type || !handle_type)
        return -1;
    Py_INCREF((PyObject *)entries_type);
    Py_INCREF((PyObject *)handle_type);
    if (PyModule_AddObject(module, "Entries", (PyObject *)entries_type) ||
        PyModule_AddObject(module, "Handle", (PyObject *)handle_type))
        return -1;
#define INTERN(name)                                                                               \
    if (!(n_##name = PyUnicode_InternFromString(#name)))                                           \
        return -1;
    NAMES(INTERN)
    return PyModule_AddFunctions(module, functions);
}
