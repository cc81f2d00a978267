/* Measures tensors that come on stdin with the kernel, without Python: for an emulated machine.
 *
 * A tensor is int64[5] {dtype code, outer, slices, inner, sample} and its elements. Its row, its
 * histogram and the rows of its slices go to stdout. */

#include "kernel.c"

#include <stdio.h>
#include <stdlib.h>

static void put_out(const void *data, size_t size) { fwrite(data, size, 1, stdout); }

int main(void) {
    int64_t head[5];
    while (fread(head, sizeof head, 1, stdin) == 1) {
        int dtype = (int)head[0];
        int64_t numel = head[1] * head[2] * head[3], bytes = numel * ITEMSIZE[dtype];
        char *data = malloc((size_t)bytes + 1);
        double row[ROW], *rows = malloc((size_t)head[2] * sizeof row + 1);
        int64_t *histogram = calloc(BINS, sizeof *histogram);
        if (!data || !rows || !histogram || fread(data, 1, (size_t)bytes, stdin) != (size_t)bytes)
            return 1;
        empty_row(row);
        for (int64_t r = 0; r < head[2]; r++)
            empty_row(rows + r * ROW);
        accumulate(data, numel, dtype, row, histogram, NULL, head[4], NOTHING, 1);
        accumulate_channels(data, head[1], head[2], head[3], dtype, rows, 1);
        put_out(row, sizeof row);
        put_out(histogram, BINS * sizeof *histogram);
        put_out(rows, (size_t)head[2] * sizeof row);
        free(data), free(rows), free(histogram);
    }
    return 0;
}
