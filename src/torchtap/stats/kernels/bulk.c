/* The taps, meters and hooks of all modules of a plan, made together: for capture/bulk.py.
 *
 * A watch around one forward makes some objects for each module. Their classes are of Python, which makes
 * the first one of a kind. Others are copies of it here, but for what is their own.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>

#include "calls.h"

#define NAMES(name)                                                                                \
    name(path) name(filters) name(bare) name(tap) name(call_numbers) name(plain_output)            \
    name(plain_gradient) name(_steps) name(__basicsize__) name(__dictoffset__)                     \
    name(__weakrefoffset__) name(_forward_pre_hooks) name(_forward_hooks)
NAMES(DECLARE)

/* ------------------------------------------------------------------- copies of an object of slots */

/* An object of which all is in slots, which are objects one after the other. */
typedef struct {
    PyObject *object; /* borrowed */
    Py_ssize_t num_slots;
} First;

static int is_of_slots(First *first, PyObject *object) {
    PyObject *class = (PyObject *)Py_TYPE(object);
    long long size = number_of(class, n___basicsize__) - (long long)sizeof(PyObject);
    *first = (First){object, (Py_ssize_t)(size / (long long)sizeof(PyObject *))};
    if (size >= 0 && !number_of(class, n___dictoffset__) && !number_of(class, n___weakrefoffset__))
        return 1;
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "expected an object that has slots alone");
    return 0;
}

static PyObject *copy_of(const First *first) {
    PyObject *made = PyType_GenericAlloc(Py_TYPE(first->object), 0);
    PyObject *const *from = (PyObject *const *)(first->object + 1);
    PyObject **slots = (PyObject **)(made + 1);
    for (Py_ssize_t i = 0; made && i < first->num_slots; i++)
        slots[i] = held(from[i]);
    return made;
}

/* ---------------------------------------------------------------------------------- meters and taps */

enum { REPLACES = 1, SUMS = 2 };

/* new_meters(clock, first place, kinds: a byte for each) -> meters, of the places from there on. */
static PyObject *new_meters(PyObject *unused, PyObject *arguments) {
    PyObject *clock;
    const char *kinds;
    Py_ssize_t number;
    long long place;
    (void)unused;
    if (!PyArg_ParseTuple(arguments, "OLy#:new_meters", &clock, &place, &kinds, &number))
        return NULL;
    PyObject *meters = PyList_New(number);
    for (Py_ssize_t i = 0; meters && i < number; i++) {
        PyObject *made = torchtap_new_meter(clock, place + i, (kinds[i] & REPLACES) != 0,
                                            (kinds[i] & SUMS) != 0);
        if (!made || PyList_SetItem(meters, i, made))
            Py_CLEAR(meters);
    }
    return meters;
}

/* Parts of which the taps of a plan are made. */
typedef struct {
    First first;
    PyObject *steps, *copies, *meters; /* `meters`: a list, or None */
    Py_ssize_t num_states;
} Making;

/* The state of a site, with the next meter; None where there is no site. */
static PyObject *next_state(Making *making, PyObject *site) {
    if (site == Py_None)
        return held(site);
    PyObject *meter = NULL;
    if (making->meters != Py_None && !(meter = PyList_GetItem(making->meters, making->num_states)))
        return NULL;
    making->num_states++;
    return torchtap_new_state(site, making->copies, meter);
}

static int fill_tap(Making *making, PyObject *tap, PyObject *planned, PyObject *bare) {
    PyObject *output, *gradient;
    return !PyArg_ParseTuple(bare, "OO", &output, &gradient) ||
           set_new(tap, n_path, PyObject_GetAttr(planned, n_path)) ||
           set_new(tap, n_filters, PyObject_GetAttr(planned, n_filters)) ||
           set_new(tap, n_call_numbers, torchtap_new_numbers(making->steps)) ||
           set_new(tap, n_plain_output, next_state(making, output)) ||
           set_new(tap, n_plain_gradient, next_state(making, gradient));
}

static PyObject *make_tap(Making *making, PyObject *planned) {
    PyObject *bare = PyObject_GetAttr(planned, n_bare);
    PyObject *tap = bare ? copy_of(&making->first) : NULL;
    if (tap && fill_tap(making, tap, planned, bare))
        Py_CLEAR(tap);
    Py_XDECREF(bare);
    return tap;
}

/* make_taps(a tap without sites, planned taps, copies, meters of their sites or None) -> taps. */
static PyObject *make_taps(PyObject *unused, PyObject *arguments) {
    Making making = {0};
    PyObject *first, *planned;
    (void)unused;
    if (!PyArg_ParseTuple(arguments, "OO!OO:make_taps", &first, &PyTuple_Type, &planned,
                          &making.copies, &making.meters) ||
        !is_of_slots(&making.first, first) || !(making.steps = PyObject_GetAttr(first, n__steps)))
        return NULL;
    PyObject *taps = PyList_New(PyTuple_Size(planned));
    for (Py_ssize_t i = 0; taps && i < PyTuple_Size(planned); i++) {
        PyObject *tap = make_tap(&making, PyTuple_GetItem(planned, i));
        if (!tap || PyList_SetItem(taps, i, tap))
            Py_CLEAR(taps);
    }
    Py_DECREF(making.steps);
    return taps;
}

/* -------------------------------------------------------------------------------------------- hooks */

/* Parts of which the hooks of a watch are made, all borrowed. */
typedef struct {
    PyObject *leaving, *leave, *native_hook;          /* see capture.plain_calls.plain_hooks */
    PyObject *enter_counted, *native_pre_hook;        /* or both None */
    First hook, counter;                              /* PostForward and CallCounter */
    PyObject *counted;                                /* ids of modules that may call themselves */
    PyObject *rows, *own;                             /* lists, which are filled */
} Hooks;

/* A copy of a hook, for another tap, which is added to the hooks that were made. */
static PyObject *hook_like(const First *first, PyObject *tap, PyObject *own) {
    PyObject *hook = copy_of(first);
    if (hook && (PyObject_SetAttr(hook, n_tap, tap) || PyList_Append(own, hook)))
        Py_CLEAR(hook);
    return hook;
}

static PyObject *native_hook(const Hooks *hooks, PyObject *tap, PyObject *calls, PyObject *output,
                             PyObject *gradient, PyObject *hook) {
    PyObject *leaving = torchtap_new_leaving(hooks->leaving, tap, calls, output, gradient);
    PyObject *made = leaving ? PyObject_CallFunctionObjArgs(hooks->native_hook, hooks->leave,
                                                            leaving, hook, NULL)
                             : NULL;
    Py_XDECREF(leaving);
    return made;
}

/* The hook after a module: native in front of `hook`, or that one. */
static PyObject *hook_after(const Hooks *hooks, PyObject *tap, PyObject *calls, PyObject *hook) {
    PyObject *output = PyObject_GetAttr(tap, n_plain_output), *made = NULL;
    PyObject *gradient = output ? PyObject_GetAttr(tap, n_plain_gradient) : NULL;
    if (gradient) {
        int is_native = (output != Py_None || gradient != Py_None) &&
                        torchtap_is_plain_state(output) && torchtap_is_plain_state(gradient);
        made = is_native ? native_hook(hooks, tap, calls, output, gradient, hook) : held(hook);
    }
    Py_XDECREF(gradient);
    Py_XDECREF(output);
    return made;
}

/* Whether calls of a module are to be counted as they begin. */
static int is_counted(const Hooks *hooks, PyObject *module) {
    PyObject *number = PySet_Size(hooks->counted) ? PyLong_FromVoidPtr(module) : NULL;
    int is = number ? PySet_Contains(hooks->counted, number) : PyErr_Occurred() ? -1 : 0;
    Py_XDECREF(number);
    return is;
}

/* The hook before a module, which counts its calls. */
static PyObject *hook_before(const Hooks *hooks, PyObject *tap, PyObject *calls, int is_native) {
    PyObject *counter = hook_like(&hooks->counter, tap, hooks->own);
    if (!counter || !is_native || hooks->enter_counted == Py_None)
        return counter;
    PyObject *made = PyObject_CallFunctionObjArgs(hooks->native_pre_hook, hooks->enter_counted, calls,
                                                  counter, NULL);
    Py_DECREF(counter);
    return made;
}

static int add_row(const Hooks *hooks, PyObject *module, PyObject *before, PyObject *after) {
    PyObject *row = before && after ? PyTuple_Pack(3, module, before, after) : NULL;
    int failed = !row || PyList_Append(hooks->rows, row);
    Py_XDECREF(row);
    return failed;
}

/* Makes the hooks of one tap. */
static int add_hooks(const Hooks *hooks, PyObject *tap, PyObject *module) {
    PyObject *before = NULL, *after = NULL, *calls = PyObject_GetAttr(tap, n_call_numbers);
    PyObject *hook = calls ? hook_like(&hooks->hook, tap, hooks->own) : NULL;
    int counted = hook ? is_counted(hooks, module) : -1;
    if (counted >= 0 && (after = hook_after(hooks, tap, calls, hook)))
        before = counted ? hook_before(hooks, tap, calls, after != hook) : held(Py_None);
    int failed = add_row(hooks, module, before, after);
    Py_XDECREF(before);
    Py_XDECREF(after);
    Py_XDECREF(hook);
    Py_XDECREF(calls);
    return failed;
}

/* make_hooks(taps, their modules, ids of those to count, parts, rows, hooks of Python): adds a row
   (module, pre-hook or None, hook) for each tap, and the hooks that it made of Python. */
static PyObject *make_hooks(PyObject *unused, PyObject *arguments) {
    Hooks hooks = {0};
    PyObject *taps, *modules, *hook, *counter;
    (void)unused;
    if (!PyArg_ParseTuple(arguments, "O!O!O!(OOOOOOO)O!O!:make_hooks", &PyList_Type, &taps,
                          &PyList_Type, &modules, &PySet_Type, &hooks.counted, &hooks.leaving,
                          &hooks.leave, &hooks.native_hook, &hook, &hooks.enter_counted,
                          &hooks.native_pre_hook, &counter, &PyList_Type, &hooks.rows, &PyList_Type,
                          &hooks.own) ||
        !is_of_slots(&hooks.hook, hook) || !is_of_slots(&hooks.counter, counter))
        return NULL;
    for (Py_ssize_t i = 0; i < PyList_Size(taps); i++) {
        PyObject *module = PyList_GetItem(modules, i);
        if (!module || add_hooks(&hooks, PyList_GetItem(taps, i), module))
            return NULL;
    }
    return held(Py_None);
}

/* ------------------------------------------------------------------------- modules that have hooks */

/* Whether a table of hooks has entries, or had ours, which rest; -1 where Python has to look. */
static int has_entries(PyObject *attributes, PyObject *name) {
    PyObject *table = PyDict_GetItemWithError(attributes, name);
    if (!table || !PyDict_Check(table))
        return -1;
    if (PyDict_Size(table))
        return 1;
    PyObject *own = PyObject_GenericGetDict(table, NULL);
    Py_ssize_t size = own ? PyDict_Size(own) : -1;
    Py_XDECREF(own);
    return size < 0 ? -1 : size > 0;
}

/* hooked(modules) -> those with entries in their tables of hooks, or None where Python has to look. */
static PyObject *hooked(PyObject *unused, PyObject *modules) {
    PyObject *found = PyList_New(0);
    int could = found && PyList_Check(modules) ? 0 : -1;
    (void)unused;
    for (Py_ssize_t i = 0; could >= 0 && i < PyList_Size(modules); i++) {
        PyObject *module = PyList_GetItem(modules, i);
        PyObject *attributes = PyObject_GenericGetDict(module, NULL);
        could = attributes ? has_entries(attributes, n__forward_pre_hooks) : -1;
        could = could ? could : has_entries(attributes, n__forward_hooks);
        could = could == 1 ? PyList_Append(found, module) : could;
        Py_XDECREF(attributes);
    }
    if (could >= 0)
        return found;
    Py_XDECREF(found);
    PyErr_Clear(); /* Python meets it again. */
    return held(Py_None);
}

static PyMethodDef functions[] = {
    {"new_meters", new_meters, METH_VARARGS, "new_meters(clock, first place, kinds) -> meters"},
    {"make_taps", make_taps, METH_VARARGS, "make_taps(first, planned, copies, meters) -> taps"},
    {"make_hooks", make_hooks, METH_VARARGS,
     "make_hooks(taps, modules, counted, parts, rows, hooks of Python): adds to both lists"},
    {"hooked", hooked, METH_O, "hooked(modules) -> those that have hooks, or None"},
    {NULL, NULL, 0, NULL},
};

int torchtap_add_bulk(PyObject *module) {
    NAMES(INTERN)
    return PyModule_AddFunctions(module, functions);
}
