/* The calls of the watched model itself, for torchtap.capture.plain_calls.
 *
 * Every other call of a step is inside of one, and needs the frame that WatchedCalls keeps of it. A
 * plain one is entered and left here, as WatchedCalls.enter and leave do it; whatever is not plain
 * goes to them before anything was noted. A watch that wants state, arguments or saved tensors has
 * these functions on no module.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "calls.h"

#define NAMES(name)                                                                                \
    name(recording) name(stack) name(training) name(hooks) name(dynamo_setting) name(_is_held)     \
    name(evaluations) name(_num_told) name(gradients) name(_leaves) name(_handles) name(_prune_at) \
    name(on_tensors) name(tables) name(backwards) name(given) name(_thread) name(running)          \
    name(forget_failed) name(facts) name(_told_by) name(_was_training)                             \
    name(num_entries) name(identifier) name(_may_differentiate) name(_is_state_taken)              \
    name(values) name(_own_storages) name(_has_trained) name(blank_frame) name(tap) name(caller)   \
    name(thread) name(number) name(phase) name(foreign) name(first_node) name(first_view)          \
    name(inputs) name(views) name(new_foreign) name(is_own_memory) name(losses) name(expect_plain) \
    name(step) name(__dict__) name(begin_training)
NAMES(DECLARE)

static PyObject *modules; /* sys.modules */
static PyObject *dynamo, *stages, *is_grad_enabled, *sequence_number;
static long long in_training; /* of TrainingFacts: forwards of training mode have told */

static int is_attribute(PyObject *of, PyObject *name, const PyObject *object) {
    return is(PyObject_GetAttr(of, name), object);
}

static int is_imported(PyObject *name) { return PyDict_Contains(modules, name); }

/* Whether code that is compiled from now on depends on hooks already, or nothing is compiled. */
static int is_held(PyObject *listener) {
    int compiles = is_imported(dynamo);
    if (compiles < 1)
        return compiles < 0 ? -1 : 1;
    PyObject *hooks = PyObject_GetAttr(listener, n_hooks);
    PyObject *setting = hooks ? PyObject_GetAttr(hooks, n_dynamo_setting) : NULL;
    int held = setting ? is_attribute(setting, n__is_held, Py_True) : -1;
    Py_XDECREF(setting);
    Py_XDECREF(hooks);
    return held;
}

/* Whether nothing is to be done of tables and leaves, as Gradients.prune. */
static int needs_no_pruning(PyObject *gradients) {
    PyObject *on_tensors = PyObject_GetAttr(gradients, n_on_tensors);
    Py_ssize_t tables = on_tensors ? size_of(on_tensors, n_tables) : -1;
    Py_ssize_t leaves = size_of(gradients, n__leaves), handles = size_of(gradients, n__handles);
    long long most = number_of(gradients, n__prune_at);
    Py_XDECREF(on_tensors);
    if (PyErr_Occurred())
        return -1;
    return !leaves && tables + handles < most;
}

/* Whether the model is in training mode: see core.preserved.mode_of. */
static int is_training(PyObject *module) {
    PyObject *members = PyObject_GetAttr(module, n___dict__);
    PyObject *mode = members && PyDict_Check(members) ? PyDict_GetItemWithError(members, n_training) : NULL;
    Py_XDECREF(members);
    return PyErr_Occurred() ? -1 : mode == Py_True;
}

/* Whether the program told that it evaluates. */
static int is_told(PyObject *listener) {
    PyObject *evaluations = PyObject_GetAttr(listener, n_evaluations);
    int told = evaluations && number_of(evaluations, n__num_told);
    Py_XDECREF(evaluations);
    return PyErr_Occurred() ? -1 : told;
}

/* Whether the facts of training know of a forward in training mode. */
static int is_noted(PyObject *listener) {
    PyObject *facts = PyObject_GetAttr(listener, n_facts);
    int noted = facts && number_of(facts, n__told_by) == in_training;
    Py_XDECREF(facts);
    return PyErr_Occurred() ? -1 : noted;
}

/* Whether a call of the model is one of plain training. */
static int is_plain_entry(const Watched *watched, PyObject *module, PyObject *gradients) {
    if (PySet_Size(watched->busy))
        return 0;
    int plain = size_of(watched->running, n_stack) == 0 && !PyErr_Occurred();
    plain = plain == 1 ? torchtap_is_of_plain_training() : plain;
    plain = plain == 1 ? is(PyObject_CallNoArgs(is_grad_enabled), Py_True) : plain;
    plain = plain == 1 ? is_training(module) : plain;
    plain = plain == 1 ? !is_told(watched->listener) : plain;
    plain = plain == 1 ? !is_imported(stages) : plain;
    plain = plain == 1 ? needs_no_pruning(gradients) : plain;
    return PyErr_Occurred() ? -1 : plain;
}

/* Has Python note that the model trains, unless it goes on to. */
static int note_training(const Watched *watched, PyObject *leaving) {
    PyObject *listener = watched->listener;
    int goes_on = torchtap_has_trained(leaving);
    goes_on = goes_on == 1 ? is_attribute(listener, n__was_training, Py_True) : goes_on;
    goes_on = goes_on == 1 ? is_noted(listener) : goes_on;
    goes_on = goes_on == 1 ? is_held(listener) : goes_on;
    if (goes_on)
        return goes_on < 0 ? -1 : 0;
    PyObject *answer = PyObject_CallMethodObjArgs(listener, n_begin_training, watched->tap, NULL);
    Py_XDECREF(answer);
    return answer ? 0 : -1;
}

/* Calls Backwards.forget_failed where there is anything to forget. */
static int forget_failed(PyObject *gradients) {
    PyObject *backwards = PyObject_GetAttr(gradients, n_backwards), *answer = NULL;
    PyObject *thread = backwards ? PyObject_GetAttr(backwards, n__thread) : NULL;
    int failed = !thread;
    if (thread && (size_of(backwards, n_given) || size_of(thread, n_running))) {
        PyErr_Clear();
        answer = PyObject_CallMethodObjArgs(backwards, n_forget_failed, NULL);
        failed = !answer;
    }
    Py_XDECREF(answer);
    Py_XDECREF(thread);
    Py_XDECREF(backwards);
    return failed;
}

/* Notes that the model is entered in this step: see WatchedCalls._enter_model. */
static int note_entry(PyObject *listener, PyObject *gradients) {
    PyObject *hooks = PyObject_GetAttr(listener, n_hooks);
    PyObject *identifier = hooks ? PyObject_GetAttr(hooks, n_identifier) : NULL;
    PyObject *values = PyObject_GetAttr(listener, n_values);
    long long entries = number_of(listener, n_num_entries);
    int failed = !identifier || !values || (entries == -1 && PyErr_Occurred()) ||
                 set_new(listener, n_num_entries, PyLong_FromLongLong(entries + 1)) ||
                 forget_failed(gradients) ||
                 PyObject_SetAttr(identifier, n__may_differentiate, Py_True) ||
                 PyObject_SetAttr(listener, n__is_state_taken, Py_True) ||
                 PyObject_SetAttr(values, n__own_storages, Py_None) ||
                 PyObject_SetAttr(listener, n__has_trained, Py_True);
    Py_XDECREF(hooks);
    Py_XDECREF(identifier);
    Py_XDECREF(values);
    return failed;
}

/* The frame of a call, as watched_calls._Frame; `foreign` is taken over. */
static PyObject *make_frame(const Watched *watched, PyObject *foreign) {
    PyObject *frame = PyObject_GetAttr(watched->listener, n_blank_frame);
    PyObject *made = frame ? PyObject_CallNoArgs(frame) : NULL;
    Py_XDECREF(frame);
    int failed = !made || !foreign || PyObject_SetAttr(made, n_foreign, foreign) ||
                 PyObject_SetAttr(made, n_tap, watched->tap) ||
                 PyObject_SetAttr(made, n_caller, (PyObject *)PyEval_GetFrame()) ||
                 set_new(made, n_thread, PyLong_FromUnsignedLong(PyThread_get_thread_ident())) ||
                 set_new(made, n_number, PyLong_FromLongLong(torchtap_next_number(watched->calls))) ||
                 PyObject_SetAttr(made, n_phase, watched->forward) ||
                 set_new(made, n_first_node, PyObject_CallNoArgs(sequence_number)) ||
                 set_new(made, n_first_view, PyLong_FromSsize_t(size_of(watched->views, n_views))) ||
                 PyObject_SetAttr(made, n_inputs, Py_None) || PyErr_Occurred();
    Py_XDECREF(foreign);
    if (failed)
        Py_CLEAR(made);
    return made;
}

/* Enters a plain call: 1, or 0 where nothing was noted, or -1. */
static int enter_plain(const Watched *watched, PyObject *leaving, PyObject *const *arguments) {
    PyObject *listener = watched->listener, *stack = NULL, *frame = NULL;
    PyObject *gradients = PyObject_GetAttr(listener, n_gradients);
    int plain = gradients ? is_plain_entry(watched, arguments[0], gradients) : -1;
    if (plain == 1) {
        /* The memory of the caller: none where values are read at once. */
        PyObject *foreign = watched->borrows
                                ? PySet_New(NULL)
                                : PyObject_CallMethodObjArgs(listener, n_new_foreign, watched->tap,
                                                             arguments[1], arguments[2], NULL);
        if (!foreign || note_training(watched, leaving) || note_entry(listener, gradients) ||
            !(frame = make_frame(watched, Py_NewRef(foreign))) ||
            !(stack = PyObject_GetAttr(watched->running, n_stack)) || PyList_Append(stack, frame))
            plain = -1;
        Py_XDECREF(foreign);
    }
    Py_XDECREF(stack);
    Py_XDECREF(frame);
    Py_XDECREF(gradients);
    return plain;
}

/* enter_model(leaving, hook, module, args, kwargs): the forward pre-hook of the model. */
static PyObject *enter_model(PyObject *module, PyObject *const *arguments, Py_ssize_t given) {
    Watched watched;
    (void)module;
    if (given < 3 || torchtap_watched(arguments[0], &watched))
        return NULL;
    int recording = is_attribute(watched.listener, n_recording, Py_True);
    if (recording < 1)
        return recording ? NULL : none();
    int plain = given == 5 ? enter_plain(&watched, arguments[0], arguments + 2) : 0;
    if (plain)
        return plain < 0 ? NULL : none();
    return torchtap_pass_on(arguments, given);
}

/* The frame of the call that is left, taken off the stack; NULL where it is not the only one, or not
   of a forward. */
static PyObject *pop_frame(const Watched *watched, PyObject *stack) {
    PyObject *frame = PyList_Size(stack) == 1 ? PyList_GetItem(stack, 0) : NULL;
    if (!frame || is_attribute(frame, n_tap, watched->tap) != 1 ||
        is_attribute(frame, n_phase, watched->forward) != 1 ||
        is_attribute(frame, n_inputs, Py_None) != 1)
        return NULL;
    Py_IncRef(frame);
    if (PyList_SetSlice(stack, 0, 1, NULL))
        Py_CLEAR(frame);
    return frame;
}

/* Takes the output, which is plain only where nobody else has its memory. */
static int take_output(const Watched *watched, PyObject *leaving, PyObject *frame, PyObject *output) {
    PyObject *foreign = watched->borrows ? NULL : PyObject_GetAttr(frame, n_foreign);
    int plain = foreign ? is(PyObject_CallMethodObjArgs(watched->listener, n_is_own_memory, output,
                                                        foreign, NULL), Py_True)
                        : (watched->borrows ? 1 : -1);
    PyObject *number = plain == 1 ? PyObject_GetAttr(frame, n_number) : NULL;
    if (plain == 1)
        plain = number ? torchtap_leave_plain(leaving, output, number) : -1;
    Py_XDECREF(number);
    Py_XDECREF(foreign);
    return plain;
}

/* A look at the loss, where one is wanted. */
static int expect_loss(const Watched *watched, PyObject *const *arguments) {
    PyObject *losses = PyObject_GetAttr(watched->listener, n_losses), *answer = NULL;
    PyObject *step = losses ? PyObject_GetAttr(watched->listener, n_step) : NULL;
    if (step && losses != Py_None)
        answer = PyObject_CallMethodObjArgs(losses, n_expect_plain, step, arguments[3], arguments[1],
                                            arguments[2], NULL);
    int failed = !step || (losses != Py_None && !answer);
    Py_XDECREF(answer);
    Py_XDECREF(step);
    Py_XDECREF(losses);
    return failed;
}

/* Leaves a plain call: 1, or 0 where nothing was noted, or -1. `arguments`: module, args, kwargs, and
   the output. */
static int leave_plain(const Watched *watched, PyObject *leaving, PyObject *const *arguments) {
    PyObject *views = PyObject_GetAttr(watched->views, n_views), *frame = NULL;
    PyObject *stack = views ? PyObject_GetAttr(watched->running, n_stack) : NULL;
    int plain = stack ? torchtap_are_untouched(views) : -1;
    if (plain == 1 && PySet_Size(watched->busy))
        plain = 0;
    if (plain == 1 && !(frame = pop_frame(watched, stack)))
        plain = PyErr_Occurred() ? -1 : 0;
    if (plain == 1 && !(plain = take_output(watched, leaving, frame, arguments[3])) &&
        PyList_Append(stack, frame)) /* Python leaves the call. */
        plain = -1;
    if (plain == 1 && (expect_loss(watched, arguments) || PyList_SetSlice(views, 0, PY_SSIZE_T_MAX, NULL)))
        plain = -1;
    Py_XDECREF(frame);
    Py_XDECREF(stack);
    Py_XDECREF(views);
    return plain;
}

/* leave_model(leaving, hook, module, args, kwargs, output): the forward hook of the model. */
static PyObject *leave_model(PyObject *module, PyObject *const *arguments, Py_ssize_t given) {
    Watched watched;
    (void)module;
    if (given < 5 || torchtap_watched(arguments[0], &watched))
        return NULL;
    int recording = is_attribute(watched.listener, n_recording, Py_True);
    if (recording < 1)
        return recording ? NULL : none();
    int plain = given == 6 ? leave_plain(&watched, arguments[0], arguments + 2) : 0;
    if (plain)
        return plain < 0 ? NULL : none();
    return torchtap_pass_on(arguments, given);
}

static PyObject *bind_model(PyObject *module, PyObject *arguments) {
    PyObject *given[4];
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!OOOOL:bind_model", &PyDict_Type, &modules, given, given + 1,
                          given + 2, given + 3, &in_training))
        return NULL;
    PyObject **const kept[] = {&dynamo, &stages, &is_grad_enabled, &sequence_number};
    Py_IncRef(modules);
    for (int i = 0; i < 4; i++) {
        Py_IncRef(given[i]);
        *kept[i] = given[i];
    }
    return none();
}

static PyMethodDef functions[] = {
    {"bind_model", bind_model, METH_VARARGS,
     "bind_model(sys.modules, name of Dynamo, of stages, is_grad_enabled, sequence_number, "
     "number that facts have once a forward in training mode has told)"},
    {"enter_model", (PyCFunction)(void (*)(void))enter_model, METH_FASTCALL,
     "enter_model(leaving, hook, module, args, kwargs): the forward pre-hook of the model"},
    {"leave_model", (PyCFunction)(void (*)(void))leave_model, METH_FASTCALL,
     "leave_model(leaving, hook, module, args, kwargs, output): the forward hook of the model"},
    {NULL, NULL, 0, NULL},
};

int torchtap_add_root(PyObject *module) {
    NAMES(INTERN)
    return PyModule_AddFunctions(module, functions);
}
