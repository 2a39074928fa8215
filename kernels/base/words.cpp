#include "kernels/base/words.h"

#include "kernels/base/check.h"
#include "kernels/base/text.h"

namespace tessera {

void fail_without_word(int value) { fail("an enum has no word for its value {}", value); }
void fail_unknown_word(std::string_view what, std::string_view word,
                       const std::vector<std::string_view>& known) {
  fail("{}", unknown_word(what, word, known));
}

}  // namespace tessera
