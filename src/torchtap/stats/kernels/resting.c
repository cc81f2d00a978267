/* Hooks of ours rest and wake: hidden_handle.OwnEntries, natively where a table holds only ours.
 *
 * A watch of each tenth step empties the tables of all modules and fills them again, with code that
 * has left the processor's caches by then: it touches two dicts of a table, and makes no object. Where
 * another hook is in the table, or another one of ours rests, Python finds the place. The caller holds
 * `tables_lock`.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "calls.h"

#define NAMES(name) name(rest) name(wake) name(resting) name(hooks) name(order)
NAMES(DECLARE)

/* Contents of the entries of a table; all but `table` are NULL until one of them rested. */
typedef struct {
    PyObject *table, *resting, *hooks; /* hooks that rest, by key */
} Entries;

static void close_entries(Entries *of) {
    Py_CLEAR(of->table);
    Py_CLEAR(of->resting);
    Py_CLEAR(of->hooks);
}

/* Looks at entries; -1 with an exception. */
static int open_entries(PyObject *own, Entries *of) {
    of->hooks = NULL;
    of->table = held(PyWeakref_GetObject(own));
    of->resting = of->table ? PyObject_GetAttr(own, n_resting) : NULL;
    if (of->resting && of->resting != Py_None)
        of->hooks = PyObject_GetAttr(of->resting, n_hooks);
    if (PyErr_Occurred())
        return close_entries(of), -1;
    return 0;
}

static int by_python(PyObject *own, PyObject *name, PyObject *key) {
    PyObject *answer = PyObject_CallMethodObjArgs(own, name, key, NULL);
    Py_XDECREF(answer);
    return answer ? 0 : -1;
}

/* Notes that a key is the only one in its table. */
static int note_order(PyObject *resting, PyObject *key) {
    PyObject *order = PyObject_GetAttr(resting, n_order);
    int failed = !order;
    if (!failed && (PyList_Size(order) != 1 || PyList_GetItem(order, 0) != key)) {
        PyObject *alone = PyList_New(1);
        failed = !alone || PyList_SetItem(alone, 0, held(key)) ||
                 PyObject_SetAttr(resting, n_order, alone);
        Py_XDECREF(alone);
    }
    Py_XDECREF(order);
    return failed ? -1 : 0;
}

/* Moves the hook of a key from one dict to another, if it is there. */
static int move(PyObject *from, PyObject *to, PyObject *key) {
    PyObject *hook = held(PyDict_GetItemWithError(from, key));
    int failed = hook ? PyObject_SetItem(to, key, hook) || PyObject_DelItem(from, key)
                      : PyErr_Occurred() != NULL;
    Py_XDECREF(hook);
    return failed ? -1 : 0;
}

static int rest_one(PyObject *own, const Entries *of, PyObject *key) {
    if (of->table == Py_None)
        return 0;
    if (!of->hooks || PyDict_Size(of->hooks) || PyDict_Size(of->table) != 1)
        return by_python(own, n_rest, key);
    return note_order(of->resting, key) || move(of->table, of->hooks, key) ? -1 : 0;
}

static int wake_one(PyObject *own, const Entries *of, PyObject *key) {
    if (of->table == Py_None || !of->hooks)
        return 0;
    if (PyDict_Size(of->table) || PyDict_Size(of->hooks) != 1)
        return by_python(own, n_wake, key);
    return move(of->hooks, of->table, key);
}

static int each(PyObject *entries, PyObject *key,
                int (*act)(PyObject *, const Entries *, PyObject *)) {
    int failed = 0;
    for (Py_ssize_t i = 0; !failed && i < PyList_Size(entries); i++) {
        PyObject *own = held(PyList_GetItem(entries, i));
        Entries of;
        failed = open_entries(own, &of);
        if (!failed) {
            failed = act(own, &of, key);
            close_entries(&of);
        }
        Py_DECREF(own);
    }
    return failed ? -1 : 0;
}

int torchtap_rest(PyObject *entries, PyObject *key) { return each(entries, key, rest_one); }

int torchtap_wake(PyObject *entries, PyObject *key) { return each(entries, key, wake_one); }

int torchtap_add_resting(void) {
    NAMES(INTERN)
    return 0;
}
