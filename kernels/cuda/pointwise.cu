#include "kernels/base/master.h"
#include "kernels/cuda/activations.cuh"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/fp8_values.cuh"
#include "kernels/cuda/pointwise.h"
#include "kernels/workspace.h"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;

// f(index of the first element) for every step of kStep elements of `count`, a multiple of kStep.
template <int kStep, class F>
__global__ void for_each_step(int64_t count, F f) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kStep;
  if (i < count) f(i);
}

// f(that index, result) with a ResultWriter, by which it writes a result
template <int kStep, class Fp8, class F>
__global__ void write_each_step(int64_t count, F f, Fp8 fp8_values) {
  ResultWriter<Fp8> result(fp8_values);
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kStep;
  if (i < count) f(i, result);
  result.end();
}

template <class From, class To>
struct Convert {
  const From* from;
  To* to;
  __device__ void operator()(int64_t i) const { to[i] = static_cast<To>(static_cast<float>(from[i])); }
};

struct Split {
  const float* masters;
  uint16_t *weights, *low;  // low may be null
  __device__ void operator()(int64_t i) const {
    const SplitMaster split = split_master(__float_as_uint(masters[i]));
    weights[i] = split.weight;
    if (low) low[i] = split.low;
  }
};

struct Join {
  const uint16_t *weights, *low;
  float* masters;
  __device__ void operator()(int64_t i) const {
    masters[i] = __uint_as_float(master_bits({weights[i], low[i]}));
  }
};

template <class T, int kStep>
struct Add {
  const T* x;
  T* y;
  __device__ void operator()(int64_t i) const {
    float sum[kStep], term[kStep];
    load_step(y + i, sum);
    load_step(x + i, term);
    for (int j = 0; j < kStep; ++j) sum[j] += term[j];
    store_step(y + i, sum);
  }
};

template <class T, int kStep>
struct AddBias {
  T* y;
  const T* bias;
  int64_t columns;
  __device__ void operator()(int64_t i) const {
    float sum[kStep], term[kStep];
    load_step(y + i, sum);
    load_step(bias + i % columns, term);
    for (int j = 0; j < kStep; ++j) sum[j] += term[j];
    store_step(y + i, sum);
  }
};

template <class A, class T, int kStep>
struct Activate {
  const T* x;
  T* y;
  template <class Result>
  __device__ void operator()(int64_t i, Result& result) const {
    float value[kStep];
    load_step(x + i, value);
    for (int j = 0; j < kStep; ++j) value[j] = A::value(value[j]);
    result.store(y, i, value);
  }
};

template <class A, class T, int kStep>
struct ActivateBackward {
  const T* x;
  T* d;
  template <class Result>
  __device__ void operator()(int64_t i, Result& result) const {
    float value[kStep], input[kStep];
    load_step(d + i, value);
    load_step(x + i, input);
    for (int j = 0; j < kStep; ++j) value[j] *= A::derivative(input[j]);
    result.store(d, i, value);
  }
};

template <int kStep, class F>
void launch(int64_t count, const F& f, cudaStream_t stream) {
  if (count == 0) return;
  for_each_step<kStep><<<divide_up(count / kStep, kThreads), kThreads, 0, stream>>>(count, f);
  TESSERA_CUDA_LAUNCHED();
}

// With what f writes in FP8 as well, in kFormat
template <class T, int kStep, __nv_fp8_interpretation_t kFormat, class F>
void launch(int64_t count, const F& f, const Fp8Output& fp8, cudaStream_t stream) {
  if (count == 0) return;
  with_fp8<T, kFormat>(fp8, [&](auto fp8_values) {
    write_each_step<kStep><<<divide_up(count / kStep, kThreads), kThreads, 0, stream>>>(count, f, fp8_values);
  });
  TESSERA_CUDA_LAUNCHED();
}

// Calls f with the type and the step that the tensors allow: packs where rows and addresses are whole packs.
template <class F>
void with_type_and_step(const Tensor& a, const Tensor& b, F&& f) {
  const auto whole = [](const Tensor& t) {
    return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.shape[-1] * size_of(t.dtype) % 16 == 0;
  };
  const bool packs = whole(a) && whole(b);
  with_real_type(a.dtype, [&]<class T>() {
    packs ? f.template operator()<T, kPackWidth<T>>() : f.template operator()<T, 1>();
  });
}

}  // namespace

bool kernels_fit_device() {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, for_each_step<1, Convert<float, bf16>>);
  cudaGetLastError();  // a kernel that cannot be loaded is an answer here, not an error of the next launch
  return status == cudaSuccess;
}

void convert(DType from_dtype, const void* from, DType to_dtype, void* to, int64_t count,
             cudaStream_t stream) {
  with_real_type(from_dtype, [&]<class From>() {
    with_real_type(to_dtype, [&]<class To>() {
      launch<1>(count, Convert<From, To>{static_cast<const From*>(from), static_cast<To*>(to)}, stream);
    });
  });
}

void split_masters(const SplitMasters& a, cudaStream_t stream) {
  launch<1>(a.weights.numel(), Split{a.masters.as<float>(), a.weights.as<uint16_t>(), a.low.as<uint16_t>()},
            stream);
}

void join_masters(const JoinMasters& a, cudaStream_t stream) {
  launch<1>(a.weights.numel(), Join{a.weights.as<uint16_t>(), a.low.as<uint16_t>(), a.masters.as<float>()},
            stream);
}

void accumulate(const Tensor& x, const Tensor& y, cudaStream_t stream) {
  with_type_and_step(x, y, [&]<class T, int kStep>() {
    launch<kStep>(y.numel(), Add<T, kStep>{x.as<T>(), y.as<T>()}, stream);
  });
}

void add_bias(const Tensor& y, const Tensor& bias, cudaStream_t stream) {
  with_type_and_step(y, bias, [&]<class T, int kStep>() {
    launch<kStep>(y.numel(), AddBias<T, kStep>{y.as<T>(), bias.as<T>(), y.shape[-1]}, stream);
  });
}

void activate(Activation activation, const Tensor& x, const Tensor& y, const Fp8Output& fp8_y,
              cudaStream_t stream) {
  with_activation<Math>(activation, [&]<class A>(A) {
    with_type_and_step(x, y, [&]<class T, int kStep>() {
      launch<T, kStep, __NV_E4M3>(x.numel(), Activate<A, T, kStep>{x.as<T>(), y.as<T>()}, fp8_y, stream);
    });
  });
}

void activate_backward(Activation activation, const Tensor& x, const Tensor& d, const Fp8Output& fp8_d,
                       cudaStream_t stream) {
  with_activation<Math>(activation, [&]<class A>(A) {
    with_type_and_step(x, d, [&]<class T, int kStep>() {
      launch<T, kStep, __NV_E5M2>(x.numel(), ActivateBackward<A, T, kStep>{x.as<T>(), d.as<T>()}, fp8_d,
                                  stream);
    });
  });
}

}  // namespace tessera::cuda
