#include "train/memory/memory_profile.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/html_page.h"
#include "kernels/base/output.h"
#include "train/memory/memory_report.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

Json index_or_null(int64_t index) { return index == MemoryRecording::kNone ? Json(nullptr) : Json(index); }

const MemoryRecording& recording_of(const MemoryProfile& profile) {
  check(profile.ledger.recording(), "a memory profile needs a ledger that records; this one does not");
  return *profile.ledger.recording();
}

// Calls visit(allocation, is_allocation, bytes by tag after it) for every allocation and release, in order.
template <class Visit>
void replay(const MemoryRecording& recording, Visit&& visit) {
  struct Event {
    const MemoryRecording::Allocation* allocation = nullptr;
    bool is_allocation = false;
  };
  std::vector<Event> events(static_cast<size_t>(recording.births_and_deaths()));
  for (const auto& a : recording.allocations()) {
    events[static_cast<size_t>(a.born.order)] = {&a, true};
    if (a.died.order != MemoryRecording::kNone) events[static_cast<size_t>(a.died.order)] = {&a, false};
  }
  BytesByTag now{};
  for (const Event& event : events) {
    now[static_cast<size_t>(event.allocation->tag)] +=
        event.is_allocation ? event.allocation->bytes : -event.allocation->bytes;
    visit(*event.allocation, event.is_allocation, now);
  }
}

int64_t sum(const BytesByTag& bytes) {
  int64_t total = 0;
  for (const int64_t b : bytes) total += b;
  return total;
}

struct Peak {
  int64_t order = MemoryRecording::kNone;  // of the first allocation that reached it
  BytesByTag by_tag{};
};

Peak peak_of(const MemoryRecording& recording) {
  Peak peak;
  replay(recording, [&](const MemoryRecording::Allocation& a, bool is_allocation, const BytesByTag& now) {
    if (is_allocation && sum(now) > sum(peak.by_tag)) peak = {a.born.order, now};
  });
  return peak;
}

Json driver_json(const MemoryProfile& profile) {
  const int64_t used = device_memory(profile.device.device).used_by_process;
  const bool cuda = profile.device.device == Device::kCuda;
  return {
      {"what", drivers_figure(profile.device.device)},
      {"bytes", used},
      {"obtained", profile.reserved_bytes},
      {"unattributed", std::max<int64_t>(0, used - profile.reserved_bytes)},
      {"about", cuda ? "Not in the ledger: the CUDA context, the loaded kernels, libraries' own memory, and "
                       "other programs on the same device."
                     : "Not in the ledger: the program, its libraries, the training data, and copies on "
                       "their way to or from a file. Memory counts as resident once it is used, and parts of "
                       "the arena may never be, so this is a lower bound."}};
}

std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// The rows of a JSON list, one a line
class Rows {
 public:
  Rows(std::string& text, std::string_view opening) : text_(text) { text_ += opening; }
  void add(const Json& row) { text_ += (std::exchange(first_, false) ? "\n" : ",\n") + text_of(row); }

 private:
  std::string& text_;
  bool first_ = true;
};

}  // namespace

std::string memory_json(const MemoryProfile& profile) {
  const MemoryRecording& recording = recording_of(profile);
  const Peak peak = peak_of(recording);
  Json tags = Json::array();
  for (int t = 0; t < kMemoryTags; ++t) tags.push_back(name_of(static_cast<MemoryTag>(t)));
  const Json summary{
      {"run", profile.run},
      {"device", profile.device.name},
      {"complete", recording.complete()},
      {"recorded_peak",
       {{"bytes", sum(peak.by_tag)}, {"by_tag", by_tag_json(peak.by_tag)}, {"order", peak.order}}},
      {"run_peak",
       {{"bytes", profile.ledger.peak_bytes()}, {"by_tag", by_tag_json(profile.ledger.at_peak())}}},
      {"plan", {{"bytes", profile.plan.peak_bytes()}, {"by_tag", by_tag_json(profile.plan.at_peak())}}},
      {"driver", driver_json(profile)},
      {"tags", tags},
      {"births_and_deaths", recording.births_and_deaths()},
      {"last_ns", recording.last_nanoseconds()}};
  std::string json = text_of(summary);
  // The lists are written row by row: as one Json value they would take many times their size.
  json.pop_back();
  Rows phases(json, ",\n\"phases\":[");
  for (size_t i = 0; i < recording.phases().size(); ++i) {
    const MemoryRecording::Phase& p = recording.phases()[i];
    const bool ended = p.end.order != MemoryRecording::kNone;
    phases.add({{"path", recording.path(static_cast<int>(i))},
                {"parent", index_or_null(p.parent)},
                {"left_out", p.skipped},
                {"begin", p.begin.order},
                {"end", ended ? p.end.order : recording.births_and_deaths()},
                {"begin_ns", p.begin.nanoseconds},
                {"end_ns", ended ? p.end.nanoseconds : recording.last_nanoseconds()}});
  }
  Rows allocations(json, "],\n\"allocations\":[");
  for (const MemoryRecording::Allocation& a : recording.allocations())
    allocations.add({{"name", a.name},
                     {"tag", name_of(a.tag)},
                     {"phase", index_or_null(a.phase)},
                     {"bytes", a.bytes},
                     {"born", a.born.order},
                     {"died", index_or_null(a.died.order)},
                     {"born_ns", a.born.nanoseconds},
                     {"died_ns", index_or_null(a.died.nanoseconds)}});
  return json + "]}\n";
}

std::string memory_trace(const MemoryProfile& profile) {
  const MemoryRecording& recording = recording_of(profile);
  const auto us = [](int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e3; };
  const int64_t last = recording.last_nanoseconds();
  const auto end_of = [&](const MemoryRecording::Moment& end) {
    return end.order == MemoryRecording::kNone ? last : end.nanoseconds;
  };
  std::string json;
  Rows events(json, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
  const auto add = [&](const char* kind, std::string_view name, int64_t nanoseconds, Json more) {
    Json event{{"ph", kind}, {"name", name}, {"ts", us(nanoseconds)}, {"pid", 1}, {"tid", 1}};
    event.update(more);
    events.add(event);
  };
  add("M", "process_name", 0, {{"args", {{"name", "memory of " + profile.device.name}}}});
  add("M", "thread_name", 0, {{"args", {{"name", "phases"}}}});
  for (size_t i = 0; i < recording.phases().size(); ++i) {
    const MemoryRecording::Phase& p = recording.phases()[i];
    const std::string path = recording.path(static_cast<int>(i));
    add("X", path.substr(path.rfind('/') + 1), p.begin.nanoseconds,  // npos + 1 is 0: the whole path
        {{"cat", "phase"}, {"dur", us(end_of(p.end) - p.begin.nanoseconds)}, {"args", {{"path", path}}}});
  }
  int64_t id = 0;
  for (const MemoryRecording::Allocation& a : recording.allocations()) {
    ++id;
    const Json what{{"cat", name_of(a.tag)}, {"id", id}};
    Json begin = what;
    begin["args"] = {{"bytes", a.bytes}, {"made in", recording.path(a.phase)}};
    add("b", a.name, a.born.nanoseconds, std::move(begin));
    add("e", a.name, end_of(a.died), what);
  }
  replay(recording, [&](const MemoryRecording::Allocation& a, bool is_allocation, const BytesByTag& now) {
    add("C", "bytes by tag", (is_allocation ? a.born : a.died).nanoseconds, {{"args", by_tag_json(now)}});
  });
  return json + "]}\n";
}

std::string memory_page(const std::string& memory_json) {
  return page_with_data(memory_page_template(), "PROFILE_DATA", memory_json);
}

void prepare_profile_folder(const fs::path& folder) {
  try {
    fs::create_directories(folder);
    check_writable(folder / "memory.json");
  } catch (const fs::filesystem_error& error) {
    fail("cannot make the folder {} for the memory profile: {}. Name another with --memory-profile FOLDER",
         folder.string(), error.code().message());
  } catch (const Error& error) {
    fail("{}. Name another folder with --memory-profile FOLDER", error.what());
  }
}

void write_memory_profile(const fs::path& folder, const MemoryProfile& profile) {
  const std::string json = memory_json(profile);
  write_output(folder / "memory.json", json);
  write_output(folder / "memory_trace.json", memory_trace(profile));
  write_output(folder / "memory.html", memory_page(json));
}

}  // namespace tessera
