// The losses of pairs of documents (kernels/preference.h) as a rule of the head.
#pragma once

#include "model/losses/loss_rule.h"

namespace tessera {

LossRule preference_loss(const PreferenceRule& rule);

}  // namespace tessera
