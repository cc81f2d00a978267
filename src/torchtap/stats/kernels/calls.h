/* What kernel.c, calls.c, saved.c and targets.c know of each other. */

#ifndef TORCHTAP_CALLS_H
#define TORCHTAP_CALLS_H

#include <stdint.h>

/* Of the binary to native.py, which has the same number: one more with every change that makes a
   binary of before unusable there. */
enum { TORCHTAP_INTERFACE = 4 };

/* Measures into the arguments at an address (native.KernelArgs). The GIL is held, and let go while
   the tensor is large. `replaces`: what was measured before is forgotten. */
void torchtap_measure(const char *data, int64_t numel, int code, int64_t aim, int64_t threads,
                      int replaces);

/* Measures a tensor into the arguments at an address that was just measured into those at another:
   1, or 0 where it is to be read again. */
int torchtap_repeat(const char *data, int64_t numel, int code, int64_t from, int64_t to);

/* agreement(...), see targets.c. */
PyObject *torchtap_agreement(PyObject *module, PyObject *arguments);

/* Adds the types and functions of calls.c to the module; -1 with an exception. */
int torchtap_add_calls(PyObject *module);

/* The same of saved.c. */
int torchtap_add_saved(PyObject *module);

#endif
