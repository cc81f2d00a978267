/* Objects of Python in C: what most of the files here do with them.
 *
 * Many of these take an answer over and say -1 where there is none, with an exception: a chain of
 * questions needs no check of each.
 */

#ifndef TORCHTAP_OBJECTS_H
#define TORCHTAP_OBJECTS_H

#include <Python.h>
#include <string.h>
#include <structmember.h>

/* ------------------------------------------------------------------------------- names of attributes */

/* For a list NAMES(name) of a file: `NAMES(DECLARE)`, and `NAMES(INTERN)` in what adds the file. */
#define DECLARE(name) static PyObject *n_##name;
#define INTERN(name)                                                                               \
    if (!(n_##name = PyUnicode_InternFromString(#name)))                                           \
        return -1;

/* --------------------------------------------------------------------------------------- references */

static inline PyObject *held(PyObject *object) {
    Py_XINCREF(object);
    return object;
}

/* A new reference to None. Py_RETURN_NONE adds no reference with the headers of 3.12 and 3.13,
 * where None is immortal, although the limited API of 3.11 is asked for (python/cpython#134989).
 * A wheel built there and used with 3.11 would take None's references away until Python aborts. */
static inline PyObject *none(void) {
    Py_IncRef(Py_None);
    return Py_None;
}

static inline PyObject *boolean(int value) {
    PyObject *answer = value ? Py_True : Py_False;
    Py_IncRef(answer);
    return answer;
}

/* ------------------------------------------------------------------------------------------ answers */

/* Whether an answer is this object; takes it over. -1 where there is none. */
static inline int is(PyObject *answer, const PyObject *object) {
    int same = answer ? answer == object : -1;
    Py_XDECREF(answer);
    return same;
}

/* An answer as a number, taken over; -1 with an exception where it is none. */
static inline long long as_number(PyObject *answer) {
    long long number = answer ? PyLong_AsLongLong(answer) : -1;
    Py_XDECREF(answer);
    return number;
}

static inline long long number_of(PyObject *of, PyObject *name) {
    return as_number(PyObject_GetAttr(of, name));
}

static inline Py_ssize_t size_of(PyObject *of, PyObject *name) {
    PyObject *found = PyObject_GetAttr(of, name);
    Py_ssize_t size = found ? PyObject_Size(found) : -1;
    Py_XDECREF(found);
    return size;
}

/* Sets an attribute to a new object, which it takes over. */
static inline int set_new(PyObject *of, PyObject *name, PyObject *value) {
    int failed = !value || PyObject_SetAttr(of, name, value);
    Py_XDECREF(value);
    return failed;
}

/* Clears an exception that Python meets again as it takes what was not taken here; -1 where it is an
   interrupt or an exit, which nobody meets again. */
static inline int forgive(void) {
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyErr_Clear();
    return 0;
}

/* --------------------------------------------------------------------- objects and their members */

#define VISIT(op, type, member) Py_VISIT(((type *)op)->member);
#define CLEAR(op, type, member) Py_CLEAR(((type *)op)->member);
/* The life of a type: `each(do, object)` does something with each member that is an object. */
#define LIFE(type, each)                                                                           \
    static int type##_traverse(PyObject *op, visitproc visit, void *arg) {                         \
        Py_VISIT(Py_TYPE(op));                                                                     \
        each(VISIT, op) return 0;                                                                  \
    }                                                                                              \
    static int type##_clear(PyObject *op) { each(CLEAR, op) return (void)op, 0; }                  \
    static void type##_dealloc(PyObject *op) {                                                     \
        PyTypeObject *own = Py_TYPE(op);                                                           \
        PyObject_GC_UnTrack(op);                                                                   \
        type##_clear(op);                                                                          \
        PyObject_GC_Del(op);                                                                       \
        Py_DECREF(own);                                                                            \
    }
#define LIFE_SLOTS(type)                                                                           \
    {Py_tp_traverse, type##_traverse}, {Py_tp_clear, type##_clear}, {Py_tp_dealloc, type##_dealloc}
/* A new object, all of its members zero. */
#define MAKE(type, of)                                                                             \
    type *self = PyObject_GC_New(type, of);                                                        \
    if (!self)                                                                                     \
        return NULL;                                                                               \
    memset((char *)self + sizeof(PyObject), 0, sizeof *self - sizeof(PyObject));
/* Makes a type, and adds it to the module under the last part of its name; -1 with an exception. */
static inline int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type) {
    *type = (PyTypeObject *)PyType_FromSpec(spec);
    return *type ? PyModule_AddType(module, *type) : -1;
}
#define OBJECT(type, member) {#member, T_OBJECT, offsetof(type, member), 0, NULL}
#define FIXED(type, member) {#member, T_OBJECT, offsetof(type, member), READONLY, NULL}
#define FLAG(type, member) {#member, T_BOOL, offsetof(type, member), 0, NULL}
#define NUMBER(type, member) {#member, T_LONGLONG, offsetof(type, member), 0, NULL}

#endif
