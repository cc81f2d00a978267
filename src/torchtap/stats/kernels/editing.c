/* Calls whose gradients are edited, for torchtap.edits.plain_edits.
 *
 * An edit of a module's grad_output has to know as the module is entered which nodes are older than
 * the call: what it hands on and did not make is edited otherwise. A plain call is entered and left
 * here, as EditEngine.enter and leave do it, with the same frame on the same stack; whatever is not
 * plain goes to them before anything was noted.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "calls.h"

#define NAMES(name)                                                                                \
    name(is_on) name(has_run) name(stack) name(views) name(are_edited) name(tap) name(caller)      \
    name(thread) name(number) name(phase) name(first_node) name(first_view) name(grad_fn)          \
    name(_is_view) name(_sequence_nr) name(expected) name(step) name(put) name(deliver)            \
    name(_backward_hooks) name(_register_hook_dict) name(tables) name(leave) name(is_outermost)     \
    name(of_tensor)
NAMES(DECLARE)

/* ------------------------------------------------------------------------------- what Python hands in */

static PyObject *tensor_type, *current_task, *is_grad_enabled, *top_saved_hooks, *transform_running,
    *tracing_state, *sequence_number, *edit_grad_hook, *new_table, *forward;
static PyObject **const BOUND[] = {
    &tensor_type,     &current_task,    &is_grad_enabled, &top_saved_hooks, &transform_running,
    &tracing_state,   &sequence_number, &edit_grad_hook,  &new_table,       &forward,
};
enum { NUM_BOUND = sizeof BOUND / sizeof *BOUND };

static PyTypeObject *editing_type;

/* ------------------------------------------------------------- Editing: of one module by one edit */

typedef struct {
    PyObject_HEAD
    PyObject *editor, *tap, *running, *numbers, *state, *gradients; /* of the edit, and of the tap */
    PyObject *inside, *on_tensors;                                  /* of the gradients */
    PyObject *blank_frame;
} Editing;
#define EDITING(do, op)                                                                            \
    do(op, Editing, editor) do(op, Editing, tap) do(op, Editing, running) do(op, Editing, numbers) \
    do(op, Editing, state) do(op, Editing, gradients) do(op, Editing, inside)                      \
    do(op, Editing, on_tensors) do(op, Editing, blank_frame)
LIFE(Editing, EDITING)

static PyObject *editing_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *given[9];
    (void)keywords;
    if (!forward) {
        PyErr_SetString(PyExc_RuntimeError, "bind_edits comes first");
        return NULL;
    }
    if (!PyArg_ParseTuple(arguments, "OOOOOOOOO:Editing", given, given + 1, given + 2, given + 3,
                          given + 4, given + 5, given + 6, given + 7, given + 8))
        return NULL;
    MAKE(Editing, type)
    PyObject **members[] = {&self->editor,    &self->tap,    &self->running,
                            &self->numbers,   &self->state,  &self->gradients,
                            &self->inside,    &self->on_tensors, &self->blank_frame};
    for (int i = 0; i < 9; i++)
        *members[i] = held(given[i]);
    PyObject_GC_Track((PyObject *)self);
    return (PyObject *)self;
}

static PyType_Slot editing_slots[] = {{Py_tp_new, editing_new}, LIFE_SLOTS(Editing), {0, NULL}};

/* Whether gradients are on, and neither a backward, a checkpoint, a transform nor a trace is running:
   no call is one that is run again, or will be. */
static int is_plain_forward(void) {
    long long task = as_number(PyObject_CallNoArgs(current_task));
    int plain = PyErr_Occurred() ? -1 : task == -1;
    plain = plain == 1 ? is(PyObject_CallNoArgs(is_grad_enabled), Py_True) : plain;
    plain = plain == 1
                ? is(PyObject_CallFunctionObjArgs(top_saved_hooks, Py_True, NULL), Py_None)
                : plain;
    plain = plain == 1 ? is(PyObject_CallNoArgs(transform_running), Py_None) : plain;
    return plain == 1 ? is(PyObject_CallNoArgs(tracing_state), Py_None) : plain;
}

/* ---------------------------------------------------------------------------- a call that is entered */

/* The frame of a call, as edit_engine._Frame. */
static PyObject *make_frame(const Editing *self) {
    int are_edited = is(PyObject_GetAttr(self->gradients, n_are_edited), Py_True);
    Py_ssize_t views = are_edited == 1 ? size_of(self->inside, n_views) : 0;
    PyObject *made = are_edited < 0 || views < 0 ? NULL : PyObject_CallNoArgs(self->blank_frame);
    if (made && (PyObject_SetAttr(made, n_tap, self->tap) ||
                 PyObject_SetAttr(made, n_caller, Py_None) ||
                 set_new(made, n_thread, PyLong_FromLong(0)) ||
                 set_new(made, n_number, PyIter_Next(self->numbers)) ||
                 PyObject_SetAttr(made, n_phase, forward) ||
                 set_new(made, n_first_node, PyObject_CallNoArgs(sequence_number)) ||
                 set_new(made, n_first_view, PyLong_FromSsize_t(views))))
        Py_CLEAR(made);
    return made;
}

static int enter_plain(const Editing *self) {
    int plain = is(PyObject_GetAttr(self->tap, n_has_run), Py_True);
    plain = plain == 1 ? is_plain_forward() : plain;
    if (plain != 1)
        return plain;
    PyObject *frame = make_frame(self);
    PyObject *stack = frame ? PyObject_GetAttr(self->running, n_stack) : NULL;
    int failed = !stack || PyList_Append(stack, frame);
    Py_XDECREF(stack);
    Py_XDECREF(frame);
    return failed ? -1 : 1;
}

static const Editing *editing_of(PyObject *const *arguments, Py_ssize_t given) {
    if (given > 2 && Py_TYPE(arguments[0]) == editing_type)
        return (const Editing *)arguments[0];
    PyErr_SetString(PyExc_TypeError, "expected an Editing and what a hook is given");
    return NULL;
}

/* enter_edited(editing, hook, module, args, kwargs): a forward pre-hook. */
static PyObject *enter_edited(PyObject *module, PyObject *const *arguments, Py_ssize_t given) {
    const Editing *self = editing_of(arguments, given);
    (void)module;
    int is_on = self ? is(PyObject_GetAttr(self->editor, n_is_on), Py_True) : -1;
    if (is_on < 1)
        return is_on ? NULL : none();
    int plain = enter_plain(self);
    if (plain)
        return plain < 0 ? NULL : none();
    return torchtap_pass_on(arguments, given);
}

/* ------------------------------------------------------------------------------- a call that is left */

/* Whether a module made what it returns: a tensor of a node that is not older than the call. */
static int made_it(PyObject *node, PyObject *frame) {
    if (node == Py_None)
        return 0;
    long long number = as_number(PyObject_CallMethodObjArgs(node, n__sequence_nr, NULL));
    long long first = as_number(PyObject_GetAttr(frame, n_first_node));
    return PyErr_Occurred() ? -1 : number >= first;
}

/* Tells the views that are followed of the end of a call, as GradientEdits.leave: nearly always there
   is none. */
static int leave_views(const Editing *self, PyObject *first, PyObject *output, int is_outermost) {
    Py_ssize_t views = size_of(self->inside, n_views), most = PyLong_AsSsize_t(first);
    if (PyErr_Occurred() || views <= most)
        return PyErr_Occurred() ? -1 : 0;
    PyObject *leave = PyObject_GetAttr(self->gradients, n_leave), *answer = NULL;
    PyObject *given = leave ? PyTuple_Pack(2, first, output) : NULL;
    PyObject *named = given ? PyDict_New() : NULL;
    if (named && !PyDict_SetItem(named, n_is_outermost, is_outermost ? Py_True : Py_False))
        answer = PyObject_Call(leave, given, named);
    Py_XDECREF(named);
    Py_XDECREF(given);
    Py_XDECREF(leave);
    Py_XDECREF(answer);
    return answer ? 0 : -1;
}

/* Puts a hook on a tensor that an operation made, as TensorHooks.put. */
static int put_hook(const Editing *self, PyObject *tensor, PyObject *node, PyObject *hook) {
    PyObject *table = PyObject_GetAttr(tensor, n__backward_hooks), *answer = NULL, *made = NULL,
             *tables = NULL, *reference = NULL;
    int failed = !table;
    if (!failed && table != Py_None) {
        answer = PyObject_CallMethodObjArgs(self->on_tensors, n_put, tensor, hook, NULL);
        failed = !answer;
    } else if (!failed) {
        failed = !(made = PyObject_CallNoArgs(new_table)) ||
                 PyObject_SetAttr(tensor, n__backward_hooks, made) ||
                 !(answer = PyObject_CallMethodObjArgs(node, n__register_hook_dict, tensor, NULL)) ||
                 !(tables = PyObject_GetAttr(self->on_tensors, n_tables)) ||
                 !(reference = PyWeakref_NewRef(made, NULL)) || PyList_Append(tables, reference) ||
                 PyObject_SetItem(made, hook, hook);
    }
    Py_XDECREF(reference);
    Py_XDECREF(tables);
    Py_XDECREF(answer);
    Py_XDECREF(made);
    Py_XDECREF(table);
    return failed ? -1 : 0;
}

/* Waits for the gradient of a tensor that is no view, as GradientEdits.of_tensor. */
static int wait_for(const Editing *self, PyObject *tensor, PyObject *node, PyObject *number) {
    PyObject *step = PyObject_GetAttr(self->gradients, n_step), *hook = NULL;
    PyObject *deliver = step ? PyObject_GetAttr(self->gradients, n_deliver) : NULL;
    long long expected = as_number(PyObject_GetAttr(self->state, n_expected));
    int failed = !deliver || PyErr_Occurred() ||
                 set_new(self->state, n_expected, PyLong_FromLongLong(expected + 1)) ||
                 PyObject_SetAttr(self->gradients, n_are_edited, Py_True) ||
                 !(hook = PyObject_CallFunctionObjArgs(edit_grad_hook, deliver, self->state, step,
                                                       number, forward, NULL)) ||
                 put_hook(self, tensor, node, hook);
    Py_XDECREF(hook);
    Py_XDECREF(deliver);
    Py_XDECREF(step);
    return failed ? -1 : 0;
}

/* Waits for the gradient of what a call returns, and ends the call: all that EditEngine.leave does. */
static int take_output(const Editing *self, PyObject *frame, PyObject *output, PyObject *node,
                       int is_outermost) {
    PyObject *first = PyObject_GetAttr(frame, n_first_view), *answer = NULL, *zero = NULL;
    PyObject *number = first ? PyObject_GetAttr(frame, n_number) : NULL;
    int were_edited = is(PyObject_GetAttr(self->gradients, n_are_edited), Py_True);
    int failed = !number || were_edited < 0 ||
                 (were_edited && leave_views(self, first, output, is_outermost));
    int is_view = failed ? -1 : is(PyObject_CallMethodObjArgs(output, n__is_view, NULL), Py_True);
    if (is_view == 1)
        failed = !(answer = PyObject_CallMethodObjArgs(self->gradients, n_of_tensor, self->state,
                                                       output, number, forward, NULL));
    else
        failed = is_view < 0 || wait_for(self, output, node, number);
    if (!failed && is_outermost) /* It is followed no further. */
        failed = !(zero = PyLong_FromLong(0)) || leave_views(self, zero, Py_None, 1);
    Py_XDECREF(zero);
    Py_XDECREF(answer);
    Py_XDECREF(number);
    Py_XDECREF(first);
    return failed ? -1 : 1;
}

/* Leaves the call of a frame: 1, or 0 where it is not plain and nothing was noted, or -1. */
static int leave_frame(const Editing *self, PyObject *stack, PyObject *frame, PyObject *output) {
    Py_ssize_t depth = PyList_Size(stack);
    int plain = is(PyObject_GetAttr(frame, n_tap), self->tap);
    plain = plain == 1 ? is(PyObject_GetAttr(frame, n_phase), forward) : plain;
    plain = plain == 1 ? is_plain_forward() : plain;
    PyObject *node = plain == 1 ? PyObject_GetAttr(output, n_grad_fn) : NULL;
    if (plain == 1)
        plain = node ? made_it(node, frame) : -1;
    if (plain == 1)
        plain = PyList_SetSlice(stack, depth - 1, depth, NULL)
                    ? -1
                    : take_output(self, frame, output, node, depth == 1);
    Py_XDECREF(node);
    return plain;
}

/* Whether an exception is handled now: PyTorch calls the hooks of a module that raised. */
static int is_handling(void) {
    PyObject *error = PyErr_GetHandledException();
    Py_XDECREF(error);
    return error != NULL;
}

static int leave_plain(const Editing *self, PyObject *output) {
    if ((PyObject *)Py_TYPE(output) != tensor_type || is_handling())
        return 0;
    PyObject *stack = PyObject_GetAttr(self->running, n_stack);
    Py_ssize_t depth = stack ? PyList_Size(stack) : -1;
    int plain = depth < 0 ? -1 : depth > 0;
    if (plain == 1) {
        PyObject *frame = held(PyList_GetItem(stack, depth - 1));
        plain = leave_frame(self, stack, frame, output);
        Py_DECREF(frame);
    }
    Py_XDECREF(stack);
    return plain;
}

/* leave_edited(editing, hook, module, args, kwargs, output): a forward hook. PyTorch may leave out
   `kwargs`, see hooks.module_hook.Keywords. */
static PyObject *leave_edited(PyObject *module, PyObject *const *arguments, Py_ssize_t given) {
    const Editing *self = editing_of(arguments, given);
    (void)module;
    int is_on = self ? is(PyObject_GetAttr(self->editor, n_is_on), Py_True) : -1;
    if (is_on < 1)
        return is_on ? NULL : none();
    int plain = leave_plain(self, arguments[given - 1]);
    if (plain)
        return plain < 0 ? NULL : none();
    return torchtap_pass_on(arguments, given);
}

/* -------------------------------------------------------------------------------- the Python door */

static PyObject *bind_edits(PyObject *module, PyObject *arguments) {
    (void)module;
    if (PyTuple_Size(arguments) != NUM_BOUND)
        return PyErr_Format(PyExc_TypeError, "expected %d arguments", NUM_BOUND);
    for (int i = 0; i < NUM_BOUND; i++) {
        PyObject *before = *BOUND[i];
        *BOUND[i] = held(PyTuple_GetItem(arguments, i));
        Py_XDECREF(before);
    }
    return none();
}

static PyMethodDef functions[] = {
    {"bind_edits", bind_edits, METH_VARARGS,
     "bind_edits(Tensor, current_task, is_grad_enabled, top_saved_hooks, transform_running, "
     "tracing_state, sequence_number, EditGradHook, OrderedDict, FORWARD)"},
    {"enter_edited", (PyCFunction)(void (*)(void))enter_edited, METH_FASTCALL,
     "enter_edited(editing, hook, module, args, kwargs): a forward pre-hook"},
    {"leave_edited", (PyCFunction)(void (*)(void))leave_edited, METH_FASTCALL,
     "leave_edited(editing, hook, module, args, kwargs, output): a forward hook"},
    {NULL, NULL, 0, NULL},
};

int torchtap_add_editing(PyObject *module) {
    PyType_Spec spec = {"torchtap.stats.kernels._kernel.Editing", sizeof(Editing), 0,
                        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, editing_slots};
    if (add_type(module, &spec, &editing_type))
        return -1;
    NAMES(INTERN)
    return PyModule_AddFunctions(module, functions);
}
