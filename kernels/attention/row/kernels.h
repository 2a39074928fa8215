// The launchers of the row kernels.
#pragma once

#include "kernels/attention/attention.h"

namespace tessera::attention::row {

AttnStatus forward(const AttnForward& f, int arch, CUstream_st* stream);
AttnStatus backward(const AttnBackward& f, int arch, CUstream_st* stream);  // the same bits every time

}  // namespace tessera::attention::row
