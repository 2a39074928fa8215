// TESSERA_HOST_DEVICE: before a function that kernels call as well as the host.
#pragma once

#ifdef __CUDACC__
#define TESSERA_HOST_DEVICE __host__ __device__
#else
#define TESSERA_HOST_DEVICE
#endif
