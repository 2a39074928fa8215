// The launchers of the fp32 kernels, which use no tensor cores.
#pragma once

#include "kernels/attention/attention.h"

namespace tessera::attention::f32 {

AttnStatus forward(const AttnForward& f, int arch, CUstream_st* stream);
AttnStatus backward(const AttnBackward& f, int arch, CUstream_st* stream);  // the same bits every time

}  // namespace tessera::attention::f32
