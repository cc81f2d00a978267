/* How calls.c and saved.c read a tensor: the table of C functions that its class carries
   (__dlpack_c_exchange_api__), as dlpack.h has it. */

#ifndef TORCHTAP_TENSORS_H
#define TORCHTAP_TENSORS_H

#include <stdint.h>

typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} DLDataType;
typedef struct {
    void *data;
    int32_t device_type, device_id, ndim;
    DLDataType dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;
typedef struct {
    uint32_t major, minor;
    void *before, *allocate, *give, *take;
    int (*look)(void *, DLTensor *);
} Exchange;

#endif
