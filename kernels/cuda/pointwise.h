// Elementwise kernels: conversion, and the epilogues of GEMMs that cuBLASLt does not support.
#pragma once

#include <cuda_runtime.h>

#include "kernels/ops.h"

namespace tessera::cuda {

// Whether the kernels of this build can be loaded on the current device.
bool kernels_fit_device();

void convert(DType from_dtype, const void* from, DType to_dtype, void* to, int64_t count,
             cudaStream_t stream);
// Masters on the device
void split_masters(const SplitMasters& a, cudaStream_t stream);
void join_masters(const JoinMasters& a, cudaStream_t stream);

void accumulate(const Tensor& x, const Tensor& y, cudaStream_t stream);   // y += x
void add_bias(const Tensor& y, const Tensor& bias, cudaStream_t stream);  // y[n, o] += bias[o]
// y = activation(x)
void activate(Activation activation, const Tensor& x, const Tensor& y, const Fp8Output& fp8_y,
              cudaStream_t stream);
// d *= activation'(x)
void activate_backward(Activation activation, const Tensor& x, const Tensor& d, const Fp8Output& fp8_d,
                       cudaStream_t stream);

}  // namespace tessera::cuda
