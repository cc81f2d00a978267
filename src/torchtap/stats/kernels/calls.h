/* Functions and types that the files share. */

#ifndef TORCHTAP_CALLS_H
#define TORCHTAP_CALLS_H

#include <Python.h>
#include <stdint.h>

#include "objects.h"

/* The number of this interface, which native.py has too: one more with every change that makes an
   older binary unusable there. */
enum { TORCHTAP_INTERFACE = 5 };

/* Measures into the arguments at an address (native.KernelArgs). The GIL is held, and let go while
   the tensor is large. `replaces`: what was measured before is forgotten. */
void torchtap_measure(const char *data, int64_t numel, int code, int64_t aim, int64_t threads,
                      int replaces);

/* Measures a tensor into the arguments at an address that was just measured into those at another:
   1, or 0 where it is to be read again. */
int torchtap_repeat(const char *data, int64_t numel, int code, int64_t from, int64_t to);

/* Where the tensors of one site are measured into. Made by Python (native.KernelArgs) or by rows.c,
   hence plain integers. */
typedef struct {
    int64_t row, histogram, sample; /* as in `accumulate` */
    int64_t lists, owner;           /* where histograms go while they fit, and under which number */
    int64_t sums, inner;            /* sums over samples of `inner` elements, or 0 */
    int64_t num_samples;            /* where it is told how many were added */
    int64_t last_list;              /* which one holds the histogram of the last tensor */
    int64_t slices, num_slices;     /* Slices[num_slices]: dims along which slices are measured */
} Aim;

/* A block of a table. */
typedef struct {
    int64_t rows, histograms, lists; /* double[num_rows][ROW]; int64_t[num_rows][BINS] or 0; Lists or 0 */
    int64_t places, num_rows;        /* int64_t[num_rows]: where the row of each belongs in a step */
} Measured;

/* Adds a row for what is at a place of a step, and aims at it: which row of the table it is, or -1. */
long long torchtap_add_row(PyObject *table, long long place, Aim *aim);

/* Hands what was measured into the blocks of a table to Python, as the items of a new tuple of 7 that
   is appended to a list; the blocks begin again with blank rows. In one call, so that no interrupt
   comes in between: the list has all of a step, or nothing changed. -1 with an exception. */
int torchtap_close_blocks(const Measured *blocks, int64_t num_blocks, int64_t num_places,
                          PyObject *taken, PyObject *into);

/* Whether an object is a table of rows. */
int torchtap_is_table(PyObject *object);

/* agreement(...), see targets.c. */
PyObject *torchtap_agreement(PyObject *module, PyObject *arguments);

/* Each adds the types and functions of its file to the module; -1 with an exception. */
int torchtap_add_bulk(PyObject *module);
int torchtap_add_calls(PyObject *module);
int torchtap_add_editing(PyObject *module);
int torchtap_add_facts(PyObject *module);
int torchtap_add_resting(void);
int torchtap_add_root(PyObject *module);
int torchtap_add_rows(PyObject *module);
int torchtap_add_saved(PyObject *module);
int torchtap_add_tables(PyObject *module);

/* Take the hooks of a key out of the tables of these `OwnEntries` for a while, and put them back; -1
   with an exception. */
int torchtap_rest(PyObject *entries, PyObject *key);
int torchtap_wake(PyObject *entries, PyObject *key);

/* ------------------------------------------------------------- what calls.c does for root.c */

/* References of a Leaving, borrowed. */
typedef struct {
    PyObject *listener, *busy, *running, *tap, *calls;
    PyObject *views;   /* views that are followed, by thread */
    PyObject *forward; /* the phase */
    int borrows;       /* sinks have read an output when they return */
} Watched;

/* Looks at a Leaving; -1 with an exception where it is none. */
int torchtap_watched(PyObject *leaving, Watched *watched);

/* Whether calls of the tap are known to train. */
int torchtap_has_trained(PyObject *leaving);

/* Whether neither a backward, a checkpoint, a transform nor a trace is running. */
int torchtap_is_of_plain_training(void);

/* Takes the output of a call: 1, or 0 where it is not plain and nothing was noted, or -1. */
int torchtap_leave_plain(PyObject *leaving, PyObject *output, PyObject *number);

/* The number of the next call. */
long long torchtap_next_number(PyObject *calls);

/* Whether views are all followed natively, and nothing wrote into any. */
int torchtap_are_untouched(PyObject *views);

/* Calls the hook behind a native one: `arguments` are a Leaving, the hook, and what it is given. */
PyObject *torchtap_pass_on(PyObject *const *arguments, Py_ssize_t given);

/* ------------------------------------------------------------- what calls.c does for bulk.c */

/* Each makes an object, and returns NULL with an exception. */
PyObject *torchtap_new_meter(PyObject *clock, long long place, int replaces, int sums);
PyObject *torchtap_new_state(PyObject *site, PyObject *copies, PyObject *meter); /* NULL: none */
PyObject *torchtap_new_numbers(PyObject *steps);
/* Like the first of a watch, for another tap; a state may be None. */
PyObject *torchtap_new_leaving(PyObject *first, PyObject *tap, PyObject *calls, PyObject *output,
                               PyObject *gradient);

/* Whether values of a state, which may be None, are taken natively. */
int torchtap_is_plain_state(PyObject *state);

#endif
