// Python's operators on the values of a template.
#pragma once

#include <string_view>

#include "data/chat/value.h"

namespace tessera::jinja {

// sign: + - * / // % ** ~. Error: the types have no such operation; a result beyond 64 bits; division by
// zero
Value binary(std::string_view sign, const Value& left, const Value& right);
Value negative(const Value& value);
Value positive(const Value& value);
// sign: == != < <= > >= in, not in
bool holds(std::string_view sign, const Value& left, const Value& right);

// The elements of a value; they live as long as this.
class Elements {
 public:
  explicit Elements(std::shared_ptr<const List> list) : list_(std::move(list)) {}
  auto begin() const { return list_->begin(); }
  auto end() const { return list_->end(); }
  size_t size() const { return list_->size(); }
  bool empty() const { return list_->empty(); }
  const Value& operator[](size_t at) const { return (*list_)[at]; }
  const List& list() const { return *list_; }
  const std::shared_ptr<const List>& shared() const { return list_; }

 private:
  std::shared_ptr<const List> list_;
};

// What a loop walks: the elements, the keys, the characters; of a generator those that are left. Error:
// there are none
Elements elements_of(const Value& value);
// Python's `part in whole`
bool contains(const Value& whole, const Value& part);
// Python's len(). Error: the value has none
int64_t length_of(const Value& value);

}  // namespace tessera::jinja
