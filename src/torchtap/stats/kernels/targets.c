/* Targets of a loss, read from its gradient, for torchtap.capture.target_agreement.
 *
 * The formulas stand there. In C, since a look at a batch costs PyTorch thirty operations on arrays
 * that one of them reads in a microsecond.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>

#include "calls.h"

/* A batch: rows of outputs and of gradients, one after the other. */
typedef struct {
    const float *outputs, *gradients;
    int64_t rows, columns;
    int64_t *classes;          /* of each row, filled by `find_classes` */
    double *outputs_mean, *targets_mean; /* of each column */
} Batch;

/* Finds the true class of each row, as target_agreement._of_classes; whether there is one. */
static int find_classes(Batch *batch) {
    double size = 0, total = 0, lowest = 0;
    for (int64_t row = 0; row < batch->rows; row++) {
        const float *own = batch->gradients + row * batch->columns;
        int64_t least = 0;
#pragma omp simd reduction(+ : size, total)
        for (int64_t k = 0; k < batch->columns; k++) {
            size += fabs((double)own[k]);
            total += own[k];
        }
        for (int64_t k = 1; k < batch->columns; k++)
            least = own[k] < own[least] ? k : least;
        if (!(own[least] < 0))
            return 0; /* A row without one: some are left out, which Python does. */
        lowest -= own[least];
        batch->classes[row] = least;
    }
    return fabs(total) < 0.02 * size && lowest > 0.45 * size;
}

static void find_means(const Batch *batch, double factor) {
    for (int64_t row = 0; row < batch->rows; row++) {
        const float *own = batch->outputs + row * batch->columns;
        const float *slope = batch->gradients + row * batch->columns;
#pragma omp simd
        for (int64_t k = 0; k < batch->columns; k++) {
            batch->outputs_mean[k] += own[k];
            batch->targets_mean[k] += factor != 0 ? own[k] - factor * slope[k] : 0;
        }
        if (factor == 0)
            batch->targets_mean[batch->classes[row]]++;
    }
    for (int64_t k = 0; k < batch->columns; k++) {
        batch->outputs_mean[k] /= (double)batch->rows;
        batch->targets_mean[k] /= (double)batch->rows;
    }
}

/* The correlation of outputs and targets, as target_agreement.agreement; None where all targets
   are one. Of squares the lowest and the highest target too. */
static PyObject *correlate(const Batch *batch, double factor) {
    double both = 0, of_outputs = 0, of_targets = 0, away = 0, low = INFINITY, high = -INFINITY;
    for (int64_t row = 0; row < batch->rows; row++) {
        const float *own = batch->outputs + row * batch->columns;
        const float *slope = batch->gradients + row * batch->columns;
        int64_t class = batch->classes ? batch->classes[row] : -1;
#pragma omp simd reduction(+ : both, of_outputs, of_targets) reduction(max : away, high)              \
    reduction(min : low)
        for (int64_t k = 0; k < batch->columns; k++) {
            double target = factor != 0 ? own[k] - factor * slope[k] : k == class;
            double one = own[k] - batch->outputs_mean[k], other = target - batch->targets_mean[k];
            both += one * other;
            of_outputs += one * one;
            of_targets += other * other;
            away = fabs(other) > away ? fabs(other) : away;
            low = target < low ? target : low;
            high = target > high ? target : high;
        }
    }
    double size = sqrt(of_outputs * of_targets);
    if (!(away > 1e-6))
        return Py_BuildValue("Odd", Py_None, low, high);
    return Py_BuildValue("ddd", size > 0 ? both / size : 0.0, low, high);
}

/* agreement(outputs, gradients, rows, columns, factor, classes) -> (agreement, lowest, highest), or
   None where it takes more care. `factor`: by which a gradient gives the error, of a squared one; 0
   of classes, which are written to `classes`. */
PyObject *torchtap_agreement(PyObject *module, PyObject *arguments) {
    long long outputs, gradients, rows, columns, classes;
    double factor;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "LLLLdL:agreement", &outputs, &gradients, &rows, &columns,
                          &factor, &classes))
        return NULL;
    double *means = PyMem_Calloc((size_t)columns * 2 + 1, sizeof *means);
    if (!means)
        return PyErr_NoMemory();
    Batch batch = {(const float *)(intptr_t)outputs, (const float *)(intptr_t)gradients, rows,
                   columns, (int64_t *)(intptr_t)classes, means, means + columns};
    PyObject *answer = NULL;
    if (factor != 0 || find_classes(&batch)) {
        double sum = 0;
        find_means(&batch, factor);
        for (int64_t k = 0; k < columns; k++)
            sum += batch.outputs_mean[k];
        if (isfinite(sum))
            answer = correlate(&batch, factor);
    }
    PyMem_Free(means);
    if (!answer && !PyErr_Occurred()) {
        Py_IncRef(Py_None);
        answer = Py_None;
    }
    return answer;
}
