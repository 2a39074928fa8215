// What ./prepare says about its samples at the end: how many were dropped, and which ones.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/sample_encoder.h"
#include "data/tokenizers/tokenizer.h"

namespace tessera {

// A number of samples of one kind, and the places of the first ones
struct Places {
  int64_t count = 0;
  std::vector<std::string> first;  // file:line

  void add(const std::vector<std::string>& places) {
    constexpr size_t kMostNamed = 3;
    count += std::ssize(places);
    for (const std::string& place : places)
      if (first.size() < kMostNamed) first.push_back(place);
  }
  std::string names() const {
    std::string names;
    for (const std::string& place : first) names += (names.empty() ? "" : ", ") + place;
    const int64_t more = count - std::ssize(first);
    return names + (more > 0 ? fmt::format(" and {} more", more) : "");
  }
};

// The results of all pieces, added up
struct Totals {
  int64_t documents = 0, conversations = 0, pairs = 0, desirable = 0, undesirable = 0, skipped_bytes = 0,
          special_names = 0;
  Places dropped, unfit, joined, lost_thoughts;
  std::string why_unfit, first_special_name, first_pair, first_unpaired;
  std::map<std::string, Places> refused;  // by the reason
  std::set<int32_t> turn_ends;

  void add(const EncodedPiece& piece) {
    documents += piece.documents;
    conversations += piece.conversations;
    pairs += piece.pairs;
    desirable += piece.desirable;
    undesirable += piece.undesirable;
    if (first_pair.empty()) first_pair = piece.first_pair;
    if (first_unpaired.empty()) first_unpaired = piece.first_unpaired;
    skipped_bytes += piece.skipped_bytes;
    if (special_names == 0) first_special_name = piece.first_special_name;
    special_names += piece.special_names;
    dropped.add(piece.dropped);
    if (unfit.count == 0) why_unfit = piece.why_unfit;
    unfit.add(piece.unfit);
    joined.add(piece.joined);
    lost_thoughts.add(piece.lost_thoughts);
    for (const auto& [place, why] : piece.refused) refused[reason(why)].add({place});
    turn_ends.insert(piece.turn_ends.begin(), piece.turn_ends.end());
  }
  int64_t count_refused() const {
    int64_t count = 0;
    for (const auto& [why, places] : refused) count += places.count;
    return count;
  }

 private:
  // A reason may name something in the message, so there can be many reasons: only the first few are told.
  std::string reason(const std::string& why) const {
    constexpr size_t kMostReasons = 4;
    return refused.contains(why) || refused.size() < kMostReasons ? why : "other reasons";
  }
};

// On standard error
void notice(const std::string& text);
void tell_left_out(const Totals& totals);
void tell_special_names(const Totals& totals, SpecialTokens special);
// Which tokens end turns; on standard output
void tell_turn_ends(const Totals& totals, const Tokenizer& tokenizer, const ChatTemplate& chat);

}  // namespace tessera
