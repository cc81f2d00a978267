/* Facts of modules that only the moment tells: for capture/training_facts.py, and for the look at a
 * model that was looked at before (core/model_layout.py).
 *
 * They are read as each watch begins, since nothing tells later what they were. A module of which they
 * cannot be read in this way makes the function return None, and Python reads them all.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stddef.h>

#include "calls.h"

enum { LONGEST_TEXT = 60 };
static const long long MOST_EXACT = 1LL << 53;

#define NAMES(name)                                                                                \
    name(training) name(_parameters) name(_buffers) name(_modules) name(requires_grad) name(numel) \
    name(forward) name(__name__) name(__mro__)
NAMES(DECLARE)

static PyObject *parameter; /* the class */

/* ----------------------------------------------------------------------- settings: plain attributes */

static int is_plain_number(PyObject *value) {
    int beyond = 0;
    long long number = PyLong_AsLongLongAndOverflow(value, &beyond);
    return !beyond && number < MOST_EXACT && number > -MOST_EXACT;
}

/* Whether a file can hold the value, as training_facts._is_plain. */
static int is_plain(PyObject *value) {
    PyTypeObject *type = Py_TYPE(value);
    if (type == &PyFloat_Type)
        return isfinite(PyFloat_AsDouble(value));
    if (type == &PyUnicode_Type)
        return PyUnicode_GetLength(value) <= LONGEST_TEXT;
    return (type == &PyLong_Type || type == &PyBool_Type) && is_plain_number(value);
}

static int is_setting(PyObject *name, PyObject *value) {
    if (!is_plain(value) || !PyUnicode_Check(name) || name == n_training)
        return 0;
    if (PyUnicode_GetLength(name) && PyUnicode_ReadChar(name, 0) == '_')
        return 0;
    return PyUnicode_CompareWithASCIIString(name, "training") != 0;
}

/* Adds the settings of a module under its path, if it has any. */
static int add_settings(PyObject *path, PyObject *attributes, PyObject *settings) {
    PyObject *name, *value, *own = PyDict_New(); /* First: the collector may run other code here. */
    Py_ssize_t place = 0;
    int failed = !own;
    while (!failed && PyDict_Next(attributes, &place, &name, &value))
        failed = is_setting(name, value) && PyDict_SetItem(own, name, value);
    failed = failed || (PyDict_Size(own) && PyDict_SetItem(settings, path, own));
    Py_XDECREF(own);
    return failed ? -1 : 0;
}

/* -------------------------------------------------------------------------- numbers of parameters */

/* Elements of the parameters of a module; -1 with an exception, or -2 where Python has to count. */
static long long num_elements(PyObject *parameters) {
    PyObject *name, *one;
    Py_ssize_t place = 0;
    long long number = 0;
    while (PyDict_Next(parameters, &place, &name, &one)) {
        if (one == Py_None)
            continue;
        if ((PyObject *)Py_TYPE(one) != parameter)
            return -2;
        Py_INCREF(one); /* A mode of functions answers in Python, and other threads go on. */
        PyObject *size = PyObject_CallMethodObjArgs(one, n_numel, NULL);
        number += size ? PyLong_AsLongLong(size) : 0;
        Py_XDECREF(size);
        Py_DECREF(one);
        if (PyErr_Occurred())
            return -1;
    }
    return number;
}

static int add_number(PyObject *path, long long number, PyObject *numbers) {
    PyObject *value = number ? PyLong_FromLongLong(number) : NULL;
    int failed = number && (!value || PyDict_SetItem(numbers, path, value));
    Py_XDECREF(value);
    return failed ? -1 : 0;
}

/* Adds what is known of one module: 1, or 0 where Python has to read it, or -1. */
static int add_module(PyObject *path, PyObject *module, PyObject *settings, PyObject *numbers) {
    PyObject *attributes = PyObject_GenericGetDict(module, NULL);
    PyObject *parameters =
        attributes ? held(PyDict_GetItemWithError(attributes, n__parameters)) : NULL;
    long long number = parameters && PyDict_Check(parameters) ? num_elements(parameters) : -2;
    int failed = !attributes || number == -1 || add_settings(path, attributes, settings) ||
                 (number > 0 && add_number(path, number, numbers));
    Py_XDECREF(parameters);
    Py_XDECREF(attributes);
    return failed || PyErr_Occurred() ? -1 : number >= 0;
}

/* read_modules(path -> module) -> (settings, number of elements) by path, or None. */
static PyObject *read_modules(PyObject *unused, PyObject *modules) {
    PyObject *path, *module, *settings = PyDict_New(), *numbers = PyDict_New(), *answer = NULL;
    Py_ssize_t place = 0;
    int could = settings && numbers && PyDict_Check(modules) ? 1 : -1;
    (void)unused;
    while (could == 1 && PyDict_Next(modules, &place, &path, &module)) {
        Py_INCREF(path);
        Py_INCREF(module);
        could = add_module(path, module, settings, numbers);
        Py_DECREF(module);
        Py_DECREF(path);
    }
    if (could >= 0)
        answer = could ? PyTuple_Pack(2, settings, numbers) : none();
    Py_XDECREF(settings);
    Py_XDECREF(numbers);
    return answer;
}

/* ---------------------------------------------------------- modes, and what requires a gradient */

/* Appends whether a parameter requires a gradient, which is held: a property may be Python. */
static int add_param(PyObject *list, PyObject *path, PyObject *name, PyObject *param) {
    Py_INCREF(name);
    Py_INCREF(param);
    PyObject *needs = PyObject_GetAttr(param, n_requires_grad);
    int failed = !needs || PyList_Append(list, path) || PyList_Append(list, name) ||
                 PyList_Append(list, needs);
    Py_XDECREF(needs);
    Py_DECREF(param);
    Py_DECREF(name);
    return failed ? -1 : 0;
}

/* Appends what is so now of one module: 1, or 0 where Python has to read it, or -1. */
static int add_state(PyObject *path, PyObject *module, PyObject *modes, PyObject *params) {
    PyObject *attributes = PyObject_GenericGetDict(module, NULL), *name, *one;
    PyObject *mode = attributes ? PyDict_GetItemWithError(attributes, n_training) : NULL;
    PyObject *held_here = mode ? held(PyDict_GetItemWithError(attributes, n__parameters)) : NULL;
    Py_ssize_t place = 0;
    int could = held_here && PyDict_Check(held_here);
    if (could && (PyList_Append(modes, path) || PyList_Append(modes, mode)))
        could = -1;
    while (could == 1 && PyDict_Next(held_here, &place, &name, &one))
        if (one != Py_None && add_param(params, path, name, one))
            could = -1;
    Py_XDECREF(held_here);
    Py_XDECREF(attributes);
    return PyErr_Occurred() ? -1 : could;
}

/* read_state(path -> weak reference to a module) -> ([path, mode, ...], [path, name of a parameter,
   whether it requires a gradient, ...]) of those that are alive, or None. */
static PyObject *read_state(PyObject *unused, PyObject *modules) {
    PyObject *path, *reference, *modes = PyList_New(0), *params = PyList_New(0), *answer = NULL;
    Py_ssize_t place = 0;
    int could = modes && params && PyDict_Check(modules) ? 1 : -1;
    (void)unused;
    while (could == 1 && PyDict_Next(modules, &place, &path, &reference)) {
        PyObject *module = held(PyWeakref_GetObject(reference));
        Py_INCREF(path);
        could = !module ? -1 : module == Py_None ? 1 : add_state(path, module, modes, params);
        Py_DECREF(path);
        Py_XDECREF(module);
    }
    if (could >= 0)
        answer = could ? PyTuple_Pack(2, modes, params) : none();
    Py_XDECREF(modes);
    Py_XDECREF(params);
    return answer;
}

/* -------------------------------------------------- whether a model is as its layout says it was */

enum { UNKNOWN = -1, DIFFERS, IS_ALIKE };

/* Whether a table has these names in this order, and None where `kept` says None. A number in
   `kept` is the place in `every` of that module; True stands for anything. */
static int is_table(PyObject *attributes, PyObject *name, PyObject *names, PyObject *kept,
                    PyObject *every) {
    PyObject *table = PyDict_GetItemWithError(attributes, name), *key, *value;
    Py_ssize_t place = 0, at = 0;
    if (!table || !PyDict_CheckExact(table))
        return UNKNOWN;
    if (PyDict_Size(table) != PyTuple_Size(names))
        return DIFFERS;
    while (PyDict_Next(table, &place, &key, &value)) {
        PyObject *known = PyTuple_GetItem(names, at), *was = PyTuple_GetItem(kept, at);
        if (key != known && Py_TYPE(key) != &PyUnicode_Type) /* Its comparison may be Python. */
            return UNKNOWN;
        int is = key == known ? 1 : PyObject_RichCompareBool(key, known, Py_EQ);
        if (is < 1)
            return is;
        if ((value == Py_None) != (was == Py_None))
            return DIFFERS;
        if (was != Py_None && was != Py_True &&
            PyList_GetItem(every, PyLong_AsSsize_t(was)) != value)
            return DIFFERS;
        at++;
    }
    return IS_ALIKE;
}

/* Whether a module is as its row of the layout says. */
static int is_module(PyObject *module, PyObject *row, PyObject *every) {
    PyObject *kind, *params, *of_params, *buffers, *of_buffers, *children, *of_children, *own_forward;
    if (!PyArg_ParseTuple(row, "OOOOOOOO", &kind, &params, &of_params, &buffers, &of_buffers,
                          &children, &of_children, &own_forward))
        return UNKNOWN;
    if ((PyObject *)Py_TYPE(module) != kind)
        return DIFFERS;
    PyObject *attributes = PyObject_GenericGetDict(module, NULL);
    int is = attributes ? is_table(attributes, n__parameters, params, of_params, every) : UNKNOWN;
    is = is == 1 ? is_table(attributes, n__buffers, buffers, of_buffers, every) : is;
    is = is == 1 ? is_table(attributes, n__modules, children, of_children, every) : is;
    if (is == 1)
        is = PyDict_Contains(attributes, n_forward) == (own_forward == Py_True);
    Py_XDECREF(attributes);
    return is;
}

/* Whether an attribute of a class is what it was; None where it had none. */
static int is_attribute(PyObject *class, PyObject *name, PyObject *was) {
    PyObject *now = PyObject_GetAttr(class, name);
    if (!now && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        now = none();
    }
    int is = now ? PyObject_RichCompareBool(now, was, Py_EQ) : UNKNOWN;
    Py_XDECREF(now);
    return is;
}

static int is_class(PyObject *row) {
    PyObject *class, *name, *bases, *forward;
    if (!PyArg_ParseTuple(row, "OOOO", &class, &name, &bases, &forward))
        return UNKNOWN;
    int is = is_attribute(class, n___name__, name);
    is = is == 1 ? is_attribute(class, n___mro__, bases) : is;
    return is == 1 ? is_attribute(class, n_forward, forward) : is;
}

/* Whether all modules are alive, which are then in the list. */
static int revive(PyObject *references, PyObject *every) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(references); i++) {
        PyObject *module = held(PyWeakref_GetObject(PyTuple_GetItem(references, i)));
        int is = !module ? UNKNOWN : module == Py_None ? DIFFERS : IS_ALIKE;
        if (is == 1 && PyList_Append(every, module))
            is = UNKNOWN;
        Py_XDECREF(module);
        if (is < 1)
            return is;
    }
    return IS_ALIKE;
}

/* look(references to modules, a row of each, a row of each class) -> all modules, or False where
   anything differs, or None where Python has to look. */
static PyObject *look(PyObject *unused, PyObject *arguments) {
    PyObject *references, *rows, *classes, *every = PyList_New(0), *answer;
    (void)unused;
    if (!every || !PyArg_ParseTuple(arguments, "O!O!O!:look", &PyTuple_Type, &references,
                                    &PyTuple_Type, &rows, &PyTuple_Type, &classes)) {
        Py_XDECREF(every);
        return NULL;
    }
    int is = revive(references, every);
    for (Py_ssize_t i = 0; is == 1 && i < PyTuple_Size(rows); i++)
        is = is_module(PyList_GetItem(every, i), PyTuple_GetItem(rows, i), every);
    for (Py_ssize_t i = 0; is == 1 && i < PyTuple_Size(classes); i++)
        is = is_class(PyTuple_GetItem(classes, i));
    if (forgive())
        answer = NULL;
    else
        answer = is == IS_ALIKE ? held(every) : is == DIFFERS ? held(Py_False) : none();
    Py_DECREF(every);
    return answer;
}

static PyObject *bind_facts(PyObject *unused, PyObject *of_parameters) {
    (void)unused;
    parameter = held(of_parameters);
    return none();
}

/* ------------------------------------------------------------- what a watch learns as it closes */

/* Whether a module holds a child under a name. */
static int holds(PyObject *parent, PyObject *name, PyObject *child) {
    PyObject *module = PyWeakref_GetObject(parent);
    if (!module || module == Py_None)
        return 0;
    Py_IncRef(module); /* A weak reference does not. */
    PyObject *children = PyObject_GetAttr(module, n__modules);
    PyObject *found = children && PyDict_Check(children) ? PyDict_GetItemWithError(children, name) : NULL;
    int is = found && found == PyWeakref_GetObject(child);
    Py_XDECREF(children);
    Py_DecRef(module);
    return is;
}

/* are_kept(links: parent, name and child, the modules by weak references), as Places.are_kept. */
static PyObject *are_kept(PyObject *unused, PyObject *links) {
    PyObject *parent, *name, *child;
    int are = 1;
    (void)unused;
    for (Py_ssize_t i = 0; are && i < PyList_Size(links); i++) {
        if (!PyArg_ParseTuple(PyList_GetItem(links, i), "OOO", &parent, &name, &child))
            return NULL;
        are = holds(parent, name, child);
    }
    if (PyErr_Occurred())
        return NULL;
    PyObject *answer = are ? Py_True : Py_False;
    Py_IncRef(answer);
    return answer;
}

static PyMethodDef functions[] = {
    {"are_kept", are_kept, METH_O, "are_kept(links) -> whether modules are where they were"},
    {"bind_facts", bind_facts, METH_O, "bind_facts(Parameter)"},
    {"read_modules", read_modules, METH_O,
     "read_modules(path -> module) -> (settings, elements of parameters) by path, or None"},
    {"read_state", read_state, METH_O,
     "read_state(path -> weak reference) -> (modes, what requires a gradient), or None"},
    {"look", look, METH_VARARGS,
     "look(references, rows of modules, rows of classes) -> modules, False or None"},
    {NULL, NULL, 0, NULL},
};

int torchtap_add_facts(PyObject *module) {
    NAMES(INTERN)
    return PyModule_AddFunctions(module, functions);
}
