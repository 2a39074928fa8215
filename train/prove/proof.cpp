#include "train/prove/proof.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/html_page.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

// How close to what is allowed; beyond it above 1, and NaN beyond all. Of equal ones, and where nothing is
// allowed, by the difference.
std::pair<double, double> share(const Measure& m) {
  if (std::isnan(m.difference)) return {INFINITY, INFINITY};
  return {m.allowed > 0 ? m.difference / m.allowed : m.difference > 0 ? INFINITY : 0, m.difference};
}

const Measure* worst_of(const std::vector<const Measure*>& measures) {
  return *std::ranges::max_element(measures, {}, [](const Measure* m) { return share(*m); });
}

std::string short_number(double value) { return value == 0 ? "0" : fmt::format("{:.1e}", value); }

void add_name(std::string& list, const std::string& name) {
  if ((", " + list + ",").find(", " + name + ",") == std::string::npos)
    list += (list.empty() ? "" : ", ") + name;
}

// What is allowed and why, each once, with the proofs that it is of
std::string reasons(const std::vector<Proof>& proofs) {
  std::vector<std::pair<std::string, std::string>> found;  // and their names
  for (const Proof& proof : proofs) {
    if (proof.reason.empty()) continue;
    auto known = std::ranges::find(found, proof.reason, &std::pair<std::string, std::string>::first);
    if (known == found.end()) known = found.insert(found.end(), {proof.reason, ""});
    add_name(known->second, proof.name);
  }
  std::string text;
  for (const auto& [reason, names] : found)
    text += fmt::format("{}allowed of {}:\n  {}", text.empty() ? "" : "\n", names, reason);
  return text;
}

}  // namespace

void Difference::add(std::span<const float> found, std::span<const float> expected) {
  constexpr size_t kChunk = size_t{1} << 18;
  const size_t count = found.size(), chunks = (count + kChunk - 1) / kChunk;
  std::vector<Difference> of(chunks);
#pragma omp parallel for if (chunks > 1)
  for (size_t c = 0; c < chunks; ++c)
    for (size_t i = c * kChunk; i < std::min(count, (c + 1) * kChunk); ++i)
      of[c].add(static_cast<double>(found[i]), static_cast<double>(expected[i]));
  for (const Difference& each : of) add(each);
}

Verdict Proof::verdict() const {
  if (!skipped.empty()) return Verdict::kSkipped;
  if (!judged) return Verdict::kReported;
  return std::ranges::all_of(measures, &Measure::ok) ? Verdict::kOk : Verdict::kFailed;
}

std::vector<const Measure*> Proof::worst() const {
  std::vector<const Measure*> found;
  for (const Measure& each : measures) {
    const auto known = std::ranges::find_if(found, [&](const Measure* m) { return m->what == each.what; });
    if (known == found.end()) {
      found.push_back(&each);
    } else {
      *known = worst_of({*known, &each});
    }
  }
  return found;
}

std::string proof_table(const std::vector<Proof>& proofs) {
  bool beside_naive = false;
  for (const Proof& proof : proofs)
    for (const Measure& m : proof.measures) beside_naive |= !std::isnan(m.naive);
  std::string text = fmt::format("{:<12} {:<18} {:>10}{} {:>9}  {:<8}  {}\n", "", "", "difference",
                                 beside_naive ? "   naive's  ratio" : "", "allowed", "", "worst in");
  for (const Proof& proof : proofs) {
    if (!proof.skipped.empty()) {
      text += fmt::format("{:<12} skipped: {}\n", proof.name, proof.skipped);
      continue;
    }
    text += fmt::format("{:<12} {}, on {} tokens\n", proof.name, proof.compared,
                        format_count(static_cast<double>(proof.tokens)));
    for (const Measure* m : proof.worst()) {
      const std::string beside = !beside_naive ? ""
                                 : std::isnan(m->naive)
                                     ? std::string(17, ' ')
                                     : fmt::format(" {:>9} {:>6.2f}", short_number(m->naive), m->ratio());
      const char* verdict = !proof.judged ? "reported" : m->ok() ? "ok" : "FAILED";
      text +=
          fmt::format("{:<12} {:<18} {:>10}{} {:>9}  {:<8}  {}\n", "", m->what, short_number(m->difference),
                      beside, proof.judged ? short_number(m->allowed) : "", verdict, m->where);
    }
    if (!proof.summary.empty()) text += fmt::format("{:<12} {}\n", "", proof.summary);
  }
  text += reasons(proofs);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

bool all_hold(const std::vector<Proof>& proofs) {
  return std::ranges::none_of(proofs, [](const Proof& p) { return p.verdict() == Verdict::kFailed; });
}

std::string verdict_line(const std::vector<Proof>& proofs) {
  std::string failed, held, reported;
  for (const Proof& proof : proofs) {
    if (proof.verdict() == Verdict::kOk) add_name(held, proof.name);
    if (proof.verdict() == Verdict::kReported) add_name(reported, proof.name);
    if (proof.verdict() != Verdict::kFailed) continue;
    std::vector<const Measure*> all;
    for (const Measure& each : proof.measures) all.push_back(&each);
    const Measure& m = *worst_of(all);
    failed += fmt::format("{}{}: {} of {} differs by {}, allowed {}", failed.empty() ? "" : "; ", proof.name,
                          m.what, m.where, short_number(m.difference), short_number(m.allowed));
  }
  if (!failed.empty()) return "FAILED: " + failed;
  if (!held.empty()) return "ok: " + held;
  return reported.empty() ? "nothing was compared" : "reported: " + reported;
}

nlohmann::ordered_json to_json(const std::vector<Proof>& proofs) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const Proof& proof : proofs) {
    nlohmann::ordered_json measures = nlohmann::ordered_json::array();
    for (const Measure& m : proof.measures) {
      measures.push_back({{"what", m.what},
                          {"where", m.where},
                          {"difference", m.difference},
                          {"largest_difference", m.largest}});
      if (!std::isnan(m.naive)) measures.back()["naive_difference"] = m.naive;
      if (proof.judged) measures.back()["allowed"] = m.allowed, measures.back()["ok"] = m.ok();
    }
    all.push_back({{"name", proof.name},
                   {"verdict", name_of(proof.verdict())},
                   {"compared", proof.compared},
                   {"tokens", proof.tokens},
                   {"reason", proof.reason},
                   {"skipped", proof.skipped},
                   {"summary", proof.summary},
                   {"seconds", proof.seconds},
                   {"measures", std::move(measures)}});
  }
  return all;
}

nlohmann::ordered_json to_json(const ProofSubject& of, const std::vector<Proof>& proofs) {
  return {{"ok", all_hold(proofs)}, {"verdict", verdict_line(proofs)},
          {"model", of.model},      {"device", of.device},
          {"data", of.data},        {"proofs", to_json(proofs)}};
}

std::string prove_page(const nlohmann::ordered_json& json) {
  return page_with_data(prove_page_template(), "PROOFS_DATA",
                        json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace tessera
