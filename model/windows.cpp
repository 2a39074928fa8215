#include "model/windows.h"

#include "model/block_pattern_definitions.h"

namespace tessera {

void WindowRun::check(int64_t window) {
  tessera::check(window >= 0, "a window of attention must be at least 1 token, or 0 for all, found {}",
                 window);
}

template class BlockPattern<WindowRun>;
template std::string text_of(const Windows& windows);

}  // namespace tessera
