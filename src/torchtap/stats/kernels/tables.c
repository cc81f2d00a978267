/* Our hooks in the tables of modules, hidden from copies: hooks/hidden_handle.py, natively.
 *
 * A watch around one forward puts three entries on each module and takes them off again. Only that is
 * done here; resting.c has hooks rest, and a copy of a table is left to `hidden_handle.OwnEntries`, of
 * which both make the same objects. The caller holds `tables_lock`.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>

#include "calls.h"

/* Names of the tables of a module: of hooks, then those in which PyTorch notes how to call one. */
#define NAMES(name)                                                                                \
    name(_forward_pre_hooks) name(_forward_pre_hooks_with_kwargs) name(_forward_hooks)             \
    name(_forward_hooks_with_kwargs) name(_forward_hooks_always_called) name(__deepcopy__)         \
    name(__reduce_ex__) name(with_kwargs) name(always_call) name(keys) name(resting) name(forget)   \
    name(move_to_end)
NAMES(DECLARE)

static PyTypeObject *handles_type;
/* Handed in by Python: the class of entries, and hook_order.put_by_role. */
static PyObject *own_entries, *put_by_role;

/* ---------------------------------------------------------------------- OwnEntries of a table */

/* Returns entries of a table that are kept for the next time, or new ones. They refer to it weakly,
   and none but them is an object for Python's collector more each time. */
static PyObject *kept_entries(PyObject *table, PyObject *kept) {
    PyObject *key = PyLong_FromVoidPtr(table);
    PyObject *own = key ? held(PyDict_GetItemWithError(kept, key)) : NULL;
    int is_new = key && !PyErr_Occurred() && (!own || PyWeakref_GetObject(own) != table);
    if (is_new) { /* Else the address may be that of another table now. */
        Py_XDECREF(own);
        own = PyObject_CallFunctionObjArgs(own_entries, table, NULL);
        if (own && PyDict_SetItem(kept, key, own))
            Py_CLEAR(own);
    }
    Py_XDECREF(key);
    return own;
}

/* Gives a table of which no entry is ours the entries that stand on it, with their first key. */
static PyObject *new_entries(PyObject *table, PyObject *attributes, PyObject *keys, PyObject *kept) {
    PyObject *own = kept_entries(table, kept);
    if (own && (PyObject_SetAttr(own, n_keys, keys) || PyObject_SetAttr(own, n_resting, Py_None) ||
                PyDict_SetItem(attributes, n___deepcopy__, own) ||
                PyDict_SetItem(attributes, n___reduce_ex__, own)))
        Py_CLEAR(own);
    return own;
}

static int add_keys(PyObject *own, PyObject *more) {
    PyObject *keys = PyObject_GetAttr(own, n_keys);
    PyObject *all = keys ? PySequence_Concat(keys, more) : NULL;
    int failed = !all || PyObject_SetAttr(own, n_keys, all);
    Py_XDECREF(all);
    Py_XDECREF(keys);
    return failed ? -1 : 0;
}

/* Notes a key among the entries of a table, as OwnEntries.of, and returns them. */
static PyObject *note_key(PyObject *table, PyObject *keys, PyObject *kept) {
    PyObject *attributes = PyObject_GenericGetDict(table, NULL), *own = NULL;
    if (!attributes)
        return NULL;
    PyObject *found = held(PyDict_GetItemWithError(attributes, n___reduce_ex__));
    if (found && Py_TYPE(found) == (PyTypeObject *)own_entries)
        own = add_keys(found, keys) ? NULL : held(found);
    else if (!PyErr_Occurred())
        own = new_entries(table, attributes, keys, kept);
    Py_XDECREF(found);
    Py_DECREF(attributes);
    return own;
}

/* Returns the keys without one; NULL with an exception. */
static PyObject *without(PyObject *keys, PyObject *key) {
    if (PyTuple_Size(keys) == 1 && PyTuple_GetItem(keys, 0) == key) /* Nearly always. */
        return PyTuple_New(0);
    PyObject *left = PyList_New(0);
    for (Py_ssize_t i = 0; left && i < PyTuple_Size(keys); i++) {
        PyObject *other = PyTuple_GetItem(keys, i);
        int differs = PyObject_RichCompareBool(other, key, Py_NE);
        if (differs < 0 || (differs && PyList_Append(left, other)))
            Py_CLEAR(left);
    }
    PyObject *others = left ? PyList_AsTuple(left) : NULL;
    Py_XDECREF(left);
    return others;
}

static int take_attributes_off(PyObject *table) {
    PyObject *attributes = PyObject_GenericGetDict(table, NULL);
    int moves = attributes ? PyDict_Contains(attributes, n_move_to_end) : -1; /* Once one rested. */
    int failed = moves < 0 || PyDict_DelItem(attributes, n___deepcopy__) ||
                 PyDict_DelItem(attributes, n___reduce_ex__) ||
                 (moves && PyDict_DelItem(attributes, n_move_to_end));
    Py_XDECREF(attributes);
    return failed ? -1 : 0;
}

/* Takes an entry out of the table; where it rests it is forgotten. */
static int drop_entry(PyObject *own, PyObject *table, PyObject *key) {
    if (PyObject_DelItem(table, key)) {
        if (!PyErr_ExceptionMatches(PyExc_KeyError))
            return -1;
        PyErr_Clear(); /* It rests, or somebody took it out. */
    }
    PyObject *resting = PyObject_GetAttr(own, n_resting), *answer = NULL;
    if (resting && resting != Py_None)
        answer = PyObject_CallMethodObjArgs(own, n_forget, key, NULL);
    int failed = !resting || (resting != Py_None && !answer);
    Py_XDECREF(answer);
    Py_XDECREF(resting);
    return failed ? -1 : 0;
}

/* Takes an entry of ours away, as OwnEntries.remove. */
static int remove_entry(PyObject *own, PyObject *key) {
    PyObject *table = held(PyWeakref_GetObject(own));
    if (!table || table == Py_None) {
        Py_XDECREF(table);
        return table ? 0 : -1;
    }
    PyObject *keys = drop_entry(own, table, key) ? NULL : PyObject_GetAttr(own, n_keys);
    PyObject *left = keys ? without(keys, key) : NULL;
    int failed = !left || PyObject_SetAttr(own, n_keys, left) ||
                 (PyTuple_Size(left) == 0 && take_attributes_off(table));
    Py_XDECREF(left);
    Py_XDECREF(keys);
    Py_DECREF(table);
    return failed ? -1 : 0;
}

/* ----------------------------------------- Handles: of hooks that are put on and taken off together */

typedef struct {
    PyObject_HEAD
    PyObject *key, *hooks, *notes; /* lists of entries: of tables of hooks, and of the others */
    PyObject *kept;                /* entries by the addresses of their tables, for the next time */
} Handles;
#define HANDLES(do, op)                                                                            \
    do(op, Handles, key) do(op, Handles, hooks) do(op, Handles, notes) do(op, Handles, kept)
LIFE(Handles, HANDLES)

static PyObject *new_handles(PyObject *key, PyObject *kept) {
    MAKE(Handles, handles_type)
    self->key = held(key);
    self->kept = held(kept);
    self->hooks = PyList_New(0);
    self->notes = PyList_New(0);
    PyObject_GC_Track((PyObject *)self);
    if (!self->hooks || !self->notes)
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* Takes entries away. Where an interrupt comes, those that are left stay in the list. */
static int remove_all(PyObject *entries, PyObject *key) {
    PyObject *type, *error, *trace;
    Py_ssize_t at = 0;
    int failed = 0;
    while (!failed && at < PyList_Size(entries)) {
        PyObject *own = held(PyList_GetItem(entries, at));
        failed = remove_entry(own, key);
        at += !failed;
        Py_DECREF(own);
    }
    PyErr_Fetch(&type, &error, &trace);
    PyList_SetSlice(entries, 0, at, NULL);
    PyErr_Restore(type, error, trace);
    return failed;
}

static PyObject *handles_remove(PyObject *op, PyObject *unused) {
    const Handles *self = (const Handles *)op;
    (void)unused;
    return remove_all(self->hooks, self->key) || remove_all(self->notes, self->key) ? NULL : none();
}

static PyObject *handles_rest(PyObject *op, PyObject *unused) {
    (void)unused;
    return torchtap_rest(((Handles *)op)->hooks, ((Handles *)op)->key) ? NULL : none();
}

static PyObject *handles_wake(PyObject *op, PyObject *unused) {
    (void)unused;
    return torchtap_wake(((Handles *)op)->hooks, ((Handles *)op)->key) ? NULL : none();
}

static PyMethodDef handles_methods[] = {
    {"remove", handles_remove, METH_NOARGS, "Take the hooks off."},
    {"rest", handles_rest, METH_NOARGS, "Take the hooks out of their tables for a while."},
    {"wake", handles_wake, METH_NOARGS, "Put the hooks back."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef handles_members[] = {
    FIXED(Handles, key), {NULL, 0, 0, 0, NULL},
};
static PyType_Slot handles_slots[] = {
    {Py_tp_methods, handles_methods}, {Py_tp_members, handles_members}, LIFE_SLOTS(Handles), {0, NULL},
};

/* ------------------------------------------------------------------------- hooks into their tables */

/* Finds a table of a module, and notes the key among its entries, which `list` has. */
static PyObject *open_table(PyObject *module, PyObject *name, PyObject *keys, PyObject *list,
                            PyObject *kept) {
    PyObject *table = PyObject_GetAttr(module, name);
    PyObject *own = table ? note_key(table, keys, kept) : NULL;
    if (!own || PyList_Append(list, own))
        Py_CLEAR(table);
    Py_XDECREF(own);
    return table;
}

static int note(PyObject *module, PyObject *name, PyObject *keys, const Handles *handles) {
    PyObject *table = open_table(module, name, keys, handles->notes, handles->kept);
    int failed = !table || PyObject_SetItem(table, handles->key, Py_True);
    Py_XDECREF(table);
    return failed ? -1 : 0;
}

static int is_set(PyObject *hook, PyObject *name) {
    PyObject *answer = PyObject_GetAttr(hook, name);
    int is = answer ? answer == Py_True : -1;
    Py_XDECREF(answer);
    return is;
}

/* Puts a hook into its tables, as HiddenHandle.put_in. The table of hooks comes last: a call in
   another thread looks at what is noted of each hook. */
static int put_hook(PyObject *module, PyObject *hook, int is_pre, PyObject *keys,
                    const Handles *handles) {
    if (hook == Py_None)
        return 0;
    PyObject *answer = NULL;
    int with_kwargs = is_set(hook, n_with_kwargs);
    int always = is_pre ? 0 : is_set(hook, n_always_call);
    if (with_kwargs < 0 || always < 0)
        return -1;
    PyObject *table = open_table(module, is_pre ? n__forward_pre_hooks : n__forward_hooks, keys,
                                 handles->hooks, handles->kept);
    int failed = !table;
    if (!failed && with_kwargs)
        failed = note(module,
                      is_pre ? n__forward_pre_hooks_with_kwargs : n__forward_hooks_with_kwargs, keys,
                      handles);
    if (!failed && always)
        failed = note(module, n__forward_hooks_always_called, keys, handles);
    failed = failed || PyObject_SetItem(table, handles->key, hook);
    if (!failed && PyObject_Size(table) > 1)
        failed = !(answer = PyObject_CallFunctionObjArgs(put_by_role, table, handles->key, NULL));
    Py_XDECREF(answer);
    Py_XDECREF(table);
    return failed ? -1 : 0;
}

static int put_all(PyObject *rows, PyObject *key, const Handles *pre, const Handles *post) {
    PyObject *keys = PyTuple_Pack(1, key), *module, *pre_hook, *hook;
    int failed = !keys;
    for (Py_ssize_t i = 0; !failed && i < PyList_Size(rows); i++) {
        PyObject *row = held(PyList_GetItem(rows, i));
        failed = !PyArg_ParseTuple(row, "OOO", &module, &pre_hook, &hook) ||
                 put_hook(module, pre_hook, 1, keys, pre) || put_hook(module, hook, 0, keys, post);
        Py_DECREF(row);
    }
    Py_XDECREF(keys);
    return failed ? -1 : 0;
}

/* put_on(rows of (module, pre-hook or None, hook or None), key, pre_hooks, hooks, kept), as
   CallFollower.put_on for each row. `kept` has the entries of last time. Handles are put into both
   lists first: what was put on until an exception came can be taken off. */
static PyObject *put_on(PyObject *unused, PyObject *arguments) {
    PyObject *rows, *key, *pre_hooks, *hooks, *kept;
    (void)unused;
    if (!PyArg_ParseTuple(arguments, "O!OO!O!O!:put_on", &PyList_Type, &rows, &key, &PyList_Type,
                          &pre_hooks, &PyList_Type, &hooks, &PyDict_Type, &kept))
        return NULL;
    PyObject *pre = new_handles(key, kept), *post = pre ? new_handles(key, kept) : NULL;
    int failed = !post || PyList_Append(pre_hooks, pre) || PyList_Append(hooks, post) ||
                 put_all(rows, key, (Handles *)pre, (Handles *)post);
    Py_XDECREF(pre);
    Py_XDECREF(post);
    return failed ? NULL : none();
}

/* bind_tables(OwnEntries, put_by_role). */
static PyObject *bind_tables(PyObject *module, PyObject *arguments) {
    PyObject *entries, *role;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OO:bind_tables", &entries, &role))
        return NULL;
    own_entries = held(entries);
    put_by_role = held(role);
    return none();
}

static PyMethodDef functions[] = {
    {"bind_tables", bind_tables, METH_VARARGS, "bind_tables(OwnEntries, put_by_role)"},
    {"put_on", put_on, METH_VARARGS, "put_on(rows, key, pre_hooks, hooks, kept): hooks of ours on modules"},
    {NULL, NULL, 0, NULL},
};

int torchtap_add_tables(PyObject *module) {
    static const unsigned int flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION;
    PyType_Spec spec = {"torchtap.stats.kernels._kernel.Handles", sizeof(Handles), 0, flags,
                        handles_slots};
    if (add_type(module, &spec, &handles_type))
        return -1;
    NAMES(INTERN)
    return PyModule_AddFunctions(module, functions);
}
