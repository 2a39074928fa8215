#include "model/activation_offload.h"

#include <algorithm>

namespace tessera {

ActivationOffload::ActivationOffload(const Stream& stream, Arena& host, const Model& model, Poison poison)
    : blocks_(model.offloaded_blocks),
      copied_(blocks_ - std::min(blocks_, kActivationSlots)),
      out_(stream.backend().make_copy_queue(stream.queue(), poison)),
      back_(stream.backend().make_copy_queue(stream.queue(), poison)) {
  Saved shapes;
  shapes.blocks.resize(copied_.size());
  for (size_t l = 0; l < copied_.size(); ++l)
    visit_kept(shapes, model, l, [&](const SavedInfo& info, Tensor&) {
      copied_[l].host.push_back(host.alloc(info.tag, info.name, info.dtype, info.shape));
    });
}

void ActivationOffload::use(Saved& saved, const Model& model) {
  for (size_t l = 0; l < copied_.size(); ++l) {
    Block& block = copied_[l];
    block.out.clear(), block.back.clear();
    visit_kept(saved, model, l, [&](const SavedInfo&, Tensor& tensor) {
      const Tensor& host = block.host[block.out.size()];
      block.out.push_back({.from = tensor, .to = host});
      block.back.push_back({.from = host, .to = tensor});
    });
  }
}

void ActivationOffload::begin_forward(size_t layer) {
  if (layer >= kActivationSlots && layer < blocks_)
    out_->wait_for(copied_[layer - kActivationSlots].out_number);
}

void ActivationOffload::end_forward(size_t layer) {
  if (layer >= copied_.size()) return;
  out_->start(copied_[layer].out);
  copied_[layer].out_number = out_->started();
}

void ActivationOffload::begin_backward(size_t layer) {
  if (layer < copied_.size()) back_->wait_for(copied_[layer].back_number);
}

void ActivationOffload::end_backward(size_t layer) {
  if (layer < kActivationSlots || layer >= blocks_) return;
  Block& next = copied_[layer - kActivationSlots];
  back_->start(next.back);
  next.back_number = back_->started();
}

}  // namespace tessera
