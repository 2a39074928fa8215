#include "train/bench/step_trace.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

int64_t now_ns() {  // as DeviceActivity
  using namespace std::chrono;
  return duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count();
}

std::string text_of(const OpPlace& place) {
  const std::string where = place.block >= 0                  ? fmt::format("block {}", place.block)
                            : place.block == OpPlace::kTables ? "embeddings"
                            : place.block == OpPlace::kHead   ? "head and loss"
                                                              : "";
  if (where.empty()) return "";
  return where + (place.backward ? ", backward" : ", forward");
}

// A slice of a track, with what is known of it
struct Slice {
  std::string name;
  int64_t begin_ns, end_ns;
  Json args = Json::object();
};

// Slices of a track, none of which may begin before the one before has ended: kernels of a stream overlap by
// microseconds where one may begin early.
class Events {
 public:
  Events(int64_t rank, int64_t from_ms) : rank_(rank), from_ns_(from_ms * 1'000'000) {
    name_it("process_name", 0, fmt::format("rank {}", rank));
  }

  void add_track(const std::string& name, std::vector<Slice> slices) {
    const int64_t track = ++tracks_;
    name_it("thread_name", track, name);
    std::ranges::stable_sort(slices, {}, &Slice::begin_ns);
    int64_t free_from = 0;
    for (Slice& slice : slices) {
      const int64_t begin = std::max(slice.begin_ns, free_from), end = std::max(slice.end_ns, begin);
      free_from = end;
      add({{"name", slice.name},
           {"ph", "X"},
           {"ts", static_cast<double>(begin - from_ns_) / 1e3},
           {"dur", static_cast<double>(end - begin) / 1e3},
           {"pid", rank_},
           {"tid", track},
           {"args", std::move(slice.args)}});
    }
  }
  std::string text() && { return std::move(text_); }

 private:
  void name_it(const char* what, int64_t track, const std::string& name) {
    add({{"name", what}, {"ph", "M"}, {"pid", rank_}, {"tid", track}, {"args", {{"name", name}}}});
  }
  void add(const Json& event) {
    text_ += (text_.empty() ? "" : ",\n") + event.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  int64_t rank_, from_ns_, tracks_ = 0;
  std::string text_;
};

// Nanoseconds of [first begin, last end] in which none of the slices runs, which are sorted by their begin
int64_t idle_ns(const std::vector<std::pair<int64_t, int64_t>>& slices) {
  int64_t idle = 0, until = slices.empty() ? 0 : slices.front().first;
  for (const auto& [begin, end] : slices) {
    idle += std::max<int64_t>(begin - until, 0);
    until = std::max(until, end);
  }
  return idle;
}

}  // namespace

StepTrace::StepTrace(Backend& backend, const ModelConfig& model, std::vector<Communicator*> communicators)
    : WorkObserver(model), backend_(backend), communicators_(std::move(communicators)) {
  std::erase(communicators_, nullptr);
  backend_.add_observer(*this);
  for (Communicator* each : communicators_) each->observe(this);
}

StepTrace::~StepTrace() { detach(); }

void StepTrace::detach() {
  backend_.remove_observer(*this);
  for (Communicator* each : communicators_) each->observe(nullptr);
}

void StepTrace::begin_work() {
  works_.push_back({.place = backend_.place(), .begin_ns = now_ns()});
  if (device_) device_->begin_work(works_.size());
}

void StepTrace::end_call() {
  if (device_) device_->end_work();
  works_.back().end_ns = now_ns();
}

void StepTrace::end_work(const std::string& name, const std::string& shape,
                         const std::function<OpCost()>& cost) {
  end_call();
  Work& work = works_.back();
  work.name = name, work.shape = shape, work.cost = cost();
}

void StepTrace::before(const char* collective, int64_t bytes) {
  begin_work();
  works_.back().name = collective, works_.back().sent = bytes;
}
void StepTrace::after() { end_call(); }

// NCCL starts its kernels on a thread of its own, which knows no work: they are those of the collectives, in
// their order. They stay without where that is not clear: on several streams, or with other numbers.
void StepTrace::find_collectives(std::vector<DeviceActivity>& activities) const {
  std::vector<uint64_t> collectives;
  for (size_t i = 0; i < works_.size(); ++i)
    if (works_[i].sent > 0) collectives.push_back(i + 1);
  std::vector<DeviceActivity*> kernels;
  for (DeviceActivity& each : activities)
    if (each.work == 0 && each.name.starts_with("nccl")) kernels.push_back(&each);
  const bool one_stream = std::ranges::all_of(
      kernels, [&](const DeviceActivity* each) { return each->stream == kernels.front()->stream; });
  if (!one_stream || kernels.size() != collectives.size()) return;
  for (size_t i = 0; i < kernels.size(); ++i) kernels[i]->work = collectives[i];
}

void StepTrace::begin() {
  works_.clear();
  begun_ms_ = now_ns() / 1'000'000;
  if (backend_.device() == Device::kCuda) device_ = start_cuda_trace();
}

TracedRank StepTrace::finish(int64_t rank, int64_t from_ms, const Roofline& bounds) {
  detach();
  communicators_.clear();
  const auto slice_of = [&](const Work& work, int64_t begin, int64_t end) {
    Slice slice{work.name, begin, end};
    Json& args = slice.args;
    if (const std::string where = text_of(work.place); !where.empty()) args["where"] = where;
    if (work.place.micro_batch >= 0) args["micro-batch"] = work.place.micro_batch + 1;
    if (!work.shape.empty()) args["shape"] = work.shape;
    const double us = static_cast<double>(end - begin) / 1e3;
    if (work.sent > 0) {
      args["bytes sent"] = work.sent;
      if (us > 0) args["GB/s"] = static_cast<double>(work.sent) / us / 1e3;
      return slice;
    }
    const RooflineRow row{.operation = work.name,
                          .shape = work.shape,
                          .bytes = work.cost.bytes,
                          .flops = work.cost.flops,
                          .fp8_flops = work.cost.fp8_flops};
    args["bytes"] = row.bytes;
    if (row.flops > 0) args["flops"] = row.flops;
    args["least us"] = 1e3 * bounds.bound_ms(row);
    if (us > 0) args["of the bound, %"] = 100 * 1e3 * bounds.bound_ms(row) / us;
    return slice;
  };
  Events events(rank, from_ms);
  TracedRank traced;
  std::vector<std::pair<int64_t, int64_t>> busy;
  if (!device_) {
    std::vector<Slice> slices;
    for (const Work& work : works_) {
      slices.push_back(slice_of(work, work.begin_ns, work.end_ns));
      busy.emplace_back(work.begin_ns, work.end_ns);
    }
    events.add_track("operations", std::move(slices));
  } else {
    struct Track {
      std::vector<Slice> kernels;
      std::map<uint64_t, std::pair<int64_t, int64_t>> works;  // where their kernels begin and end
    };
    std::map<uint32_t, Track> streams;
    std::vector<DeviceActivity> activities = device_->stop();
    check(!activities.empty(),
          "NVIDIA's CUPTI recorded nothing of the step. Another process may trace this GPU: ncu, nsys, or a "
          "trace of another run");
    find_collectives(activities);
    for (DeviceActivity& each : activities) {
      Track& track = streams[each.stream];
      Slice slice{std::move(each.name), each.begin_ns, each.end_ns};
      if (each.bytes > 0) {
        slice.args["bytes"] = each.bytes;
        if (each.end_ns > each.begin_ns)
          slice.args["GB/s"] =
              static_cast<double>(each.bytes) / static_cast<double>(each.end_ns - each.begin_ns);
      }
      if (each.work > 0 && each.work <= works_.size()) {
        slice.args["operation"] = works_[each.work - 1].name;
        auto [at, first] = track.works.try_emplace(each.work, each.begin_ns, each.end_ns);
        if (!first) at->second.second = std::max(at->second.second, each.end_ns);
      }
      busy.emplace_back(each.begin_ns, each.end_ns);
      track.kernels.push_back(std::move(slice));
    }
    for (auto& [number, track] : streams) {
      std::vector<Slice> operations;
      for (const auto& [work, span] : track.works)
        operations.push_back(slice_of(works_[work - 1], span.first, span.second));
      if (!operations.empty())
        events.add_track(fmt::format("stream {}: operations", number), std::move(operations));
      events.add_track(fmt::format("stream {}: kernels", number), std::move(track.kernels));
    }
  }
  traced.activities = std::ssize(busy);
  int64_t last = 0;
  for (const auto& [begin, end] : busy) last = std::max(last, end);
  if (!busy.empty()) traced.ms = static_cast<double>(last - busy.front().first) / 1e6;
  traced.idle_ms = static_cast<double>(idle_ns(busy)) / 1e6;
  traced.events = std::move(events).text();
  return traced;
}

std::string trace_file(std::span<const std::string> events) {
  std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  for (size_t rank = 0; rank < events.size(); ++rank) text += (rank == 0 ? "" : ",\n") + events[rank];
  return text + "\n]}\n";
}

}  // namespace tessera
