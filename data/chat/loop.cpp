#include "data/chat/loop.h"

#include "data/chat/arguments.h"
#include "kernels/base/check.h"

namespace tessera::jinja {
namespace {

Value beside(const Loop& loop, bool there, size_t at) {
  if (!there) return Undefined{"the element beside the loop"};
  check(loop.list != nullptr, "the loop has ended, so its elements are not known");
  return (*loop.list)[at];
}

Value cycle(const Loop& loop, const Arguments& a) {
  check(!a.positional.empty() && a.named.empty(), "loop.cycle needs values, without names");
  return a.positional[loop.at % a.positional.size()];
}

Value has_changed(Loop& loop, const Arguments& a) {
  check(a.named.empty(), "loop.changed takes no named arguments");
  check(loop.list != nullptr, "the loop has ended, so loop.changed() is not supported");
  const bool same =
      loop.changed && std::ranges::equal(*loop.changed, a.positional,
                                         [](const Value& x, const Value& y) { return equal(x, y); });
  if (!same) loop.changed = a.positional;
  return !same;
}

}  // namespace

Value loop_field(const std::shared_ptr<Loop>& loop, std::string_view name) {
  const auto at = static_cast<int64_t>(loop->at), length = static_cast<int64_t>(loop->length);
  if (name == "index") return at + 1;
  if (name == "index0") return at;
  if (name == "revindex") return length - at;
  if (name == "revindex0") return length - at - 1;
  if (name == "first") return at == 0;
  if (name == "last") return at + 1 == length;
  if (name == "length") return length;
  if (name == "depth") return int64_t{loop->depth};
  if (name == "depth0") return int64_t{loop->depth - 1};
  if (name == "previtem") return beside(*loop, at > 0, loop->at - 1);
  if (name == "nextitem") return beside(*loop, at + 1 < length, loop->at + 1);
  if (name == "cycle")
    return Callable{.name = "cycle", .call = [loop](const Arguments& a) { return cycle(*loop, a); }};
  if (name == "changed")
    return Callable{.name = "changed", .call = [loop](const Arguments& a) { return has_changed(*loop, a); }};
  return Undefined{std::string(name)};
}

}  // namespace tessera::jinja
