#include "model/formats/weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <regex>
#include <set>

#include "kernels/base/check.h"
#include "kernels/base/small_scales.h"
#include "kernels/base/text.h"
#include "model/formats/bitsandbytes.h"
#include "model/formats/folder.h"
#include "model/formats/mxfp4.h"
#include "model/formats/pieces.h"
#include "model/formats/tensor_files.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// In the names of a model of texts that is a part of another
constexpr std::string_view kOfText = "language_model.";

// Where a file has a tensor
struct PlacedTensor {
  const SafetensorsReader& file;
  std::string name;
};

// A parameter from its pieces. `read` reads a tensor of the family in fp32.
struct PiecesReader {
  const std::vector<TensorPiece>& pieces;
  std::function<void(const TensorPiece&, std::span<float>)> read;
};
void read_pieces(const PiecesReader& from, const ParamPlace& place, const ParamSink& sink) {
  Arena staging = Arena::host();
  const ParamInfo& info = place.info;
  const Tensor host = staging.alloc(MemoryTag::kData, info.name, DType::kF32, info.shape);
  const std::span<float> values(host.as<float>(), static_cast<size_t>(host.numel()));
  for (const TensorPiece& piece : from.pieces) {
    if (is_plain(piece)) {
      from.read(piece, part(piece, values));
      continue;
    }
    Arena of_piece = Arena::host();
    const Tensor stored = of_piece.alloc(MemoryTag::kData, piece.name, DType::kF32, piece.shape);
    const std::span<float> in_file(stored.as<float>(), static_cast<size_t>(piece.elements()));
    from.read(piece, in_file);
    from_file(piece, in_file, values);
  }
  std::ranges::fill(values.last(static_cast<size_t>(info.padding * info.shape[-1])), 0.0f);
  sink(place, host);
}

// A parameter of bf16 tensors, as they are. `find` says where a tensor of the family is.
struct PiecesInBf16 {
  const std::vector<TensorPiece>& pieces;
  std::function<PlacedTensor(const std::string&)> find;
  Values values;
};
void read_bf16(const PiecesInBf16& from, const ParamPlace& place, const ParamSink& sink) {
  Arena staging = Arena::host();
  const Tensor host = staging.alloc(MemoryTag::kData, place.info.name, DType::kBF16, place.info.shape);
  std::byte *const values = host.as<std::byte>(), *end = values;
  for (const TensorPiece& piece : from.pieces) {
    const PlacedTensor in = from.find(piece.name);
    if (from.values == Values::kFinite) in.file.check_finite(in.name);
    const std::span<const std::byte> bytes = in.file.entries().at(in.name).bytes;
    std::byte* const to = values + piece.first * piece.columns * static_cast<int64_t>(sizeof(uint16_t));
    copy_bytes(bytes, to);
    end = to + bytes.size();
  }
  std::fill(end, values + host.bytes(), std::byte{0});  // the padding
  sink(place, host);
}

std::vector<FileTensor> entries_of(const HuggingFaceLayout& tensors, const ModelConfig& model,
                                   const std::vector<std::string>& prefixes, const WeightsWriter::Has& has) {
  const ParamLayout layout(model, 1);
  std::vector<FileTensor> entries;
  for (const std::string& prefix : prefixes)
    for (size_t b = 0; b < layout.buckets.size(); ++b)
      for (const ParamPlace& place : layout.places) {
        if (place.bucket != b || (has && !has(prefix, place))) continue;
        for (FileTensor& tensor : tensors.tensors_of(place.info)) {
          tensor.name = prefix + tensor.name;
          entries.push_back(std::move(tensor));
        }
      }
  return entries;
}

}  // namespace

WeightsFolder::WeightsFolder(const fs::path& folder, const ModelConfig& model, const FolderOptions& options,
                             Values values)
    : folder_(folder),
      extension_(options.extension),
      values_(values),
      found_(check_same_model(folder, model, {.options = options, .have_another_use = true})),
      family_(*find_family(found_.family)),
      files_(folder) {
  std::set<std::string> names;
  int64_t in_nf4 = 0, in_mxfp4 = 0;
  const ParamLayout layout(found_.model, 1);
  naming_ = naming_of_files();
  for (const ParamPlace& place : layout.places)
    for (const TensorPiece& piece : pieces_of(family_, found_.model, place.info)) {
      const InFile in = find(piece.name);
      if (Nf4Tensor::is_one(files_, in.name)) {
        const Nf4Tensor nf4(files_, in.name, piece.shape);
        names.insert(nf4.names().begin(), nf4.names().end());
        ++in_nf4;
      } else if (const std::string name = name_in_file(piece.name); Mxfp4Tensor::is_one(files_, name)) {
        const Mxfp4Tensor mxfp4(files_, name, piece.shape);
        names.insert(Mxfp4Tensor::blocks_of(name)), names.insert(Mxfp4Tensor::scales_of(name));
        ++in_mxfp4;
      } else {
        in.file.check_readable(in.name, piece.shape);
        names.insert(in.name);
      }
    }
  refuse_left_over(names);
  if (in_nf4 > 0)
    found_.notices.push_back(
        fmt::format("{} matrices of {} are stored in NF4, 4 bits a number", in_nf4, folder_.string()));
  if (in_mxfp4 > 0)
    found_.notices.push_back(fmt::format("{} tensors of experts of {} are stored in MXFP4, 4 bits a number",
                                         in_mxfp4, folder_.string()));
  if (found_.type != found_.family) leave_images_out();
}

WeightsFolder::Naming WeightsFolder::naming_of_files() const {
  const std::string name = first_tensor_of(kTokenTable);
  if (found_.type != found_.family)
    return files_.contains(std::string(kOfText) + name) ? Naming::kBefore : Naming::kBehind;
  return files_.contains(name) ? Naming::kFamily : Naming::kBare;
}

void WeightsFolder::leave_images_out() {
  const std::regex images(family_.with_images.image_tensors.begin(), family_.with_images.image_tensors.end());
  int64_t count = 0, bytes = 0;
  for (const auto& [name, file] : files_.tensors()) {
    if (!std::regex_match(name, images)) continue;
    ++count;
    bytes += std::ssize(file->entries().at(name).bytes);
  }
  found_.notices.push_back(
      fmt::format("{} holds a model of texts and images: its model of texts is used, and {} tensors of the "
                  "part for images, {}, are left out",
                  folder_.string(), count, format_bytes(bytes)));
}

NumberFormat WeightsFolder::format() const {
  std::set<std::string> dtypes;
  bool in_mxfp4 = false;
  for (const ParamPlace& place : ParamLayout(found_.model, 1).places)
    for (const TensorPiece& piece : pieces_of(family_, found_.model, place.info)) {
      const InFile in = find(piece.name);
      if (Mxfp4Tensor::is_one(files_, name_in_file(piece.name)))
        in_mxfp4 = true;
      else
        dtypes.insert(in.file.entries().at(in.name).dtype);
    }
  if (dtypes == std::set<std::string>{"BF16"}) return in_mxfp4 ? NumberFormat::kMxfp4 : NumberFormat::kBF16;
  if (in_mxfp4) return NumberFormat::kF32;
  if (dtypes == std::set<std::string>{"F16"}) return NumberFormat::kF16;
  return NumberFormat::kF32;
}

std::string WeightsFolder::name_in_file(const std::string& name) const {
  const bool has_lead = name.starts_with(family_.lead);
  switch (naming_) {
    case Naming::kFamily:
      return name;
    case Naming::kBare:
      return has_lead ? name.substr(family_.lead.size()) : name;
    case Naming::kBefore:
      return std::string(kOfText) + name;
    case Naming::kBehind:
      return has_lead ? fmt::format("{}{}{}", family_.lead, kOfText, name.substr(family_.lead.size())) : name;
  }
  fail("tensors are named in an unknown way, {}", static_cast<int>(naming_));
}

WeightsFolder::InFile WeightsFolder::find(const std::string& name) const {
  std::string in_file = name_in_file(name);
  if (Mxfp4Tensor::is_one(files_, in_file)) in_file = Mxfp4Tensor::blocks_of(in_file);
  return {files_.file_of(in_file), in_file};
}

// `param` is outside the blocks
std::string WeightsFolder::first_tensor_of(const char* param) const {
  const ModelConfig& model = found_.model;
  const ParamInfo info{param, {model.vocab_size, model.channels}, Init::kZero};
  return pieces_of(family_, model, info).front().name;
}

void WeightsFolder::refuse_left_over(const std::set<std::string>& known) const {
  const std::regex buffers(family_.buffers.begin(), family_.buffers.end());
  const std::string_view of_images =
      found_.type == found_.family ? std::string_view() : family_.with_images.image_tensors;
  const std::regex images(of_images.begin(), of_images.end());
  const std::string head = name_in_file(first_tensor_of(kHead));
  constexpr size_t kNamed = 5;
  std::vector<std::string> left;
  for (const auto& [name, file] : files_.tensors()) {
    if (known.contains(name) || std::regex_match(name, buffers) || std::regex_match(name, images)) continue;
    if (name == head)
      check_tied_head(head);
    else
      left.push_back(name);
  }
  const size_t named = std::min(left.size(), kNamed);
  const std::string more = left.size() > named ? fmt::format(" and {} more", left.size() - named) : "";
  check(left.empty(),
        "{} has tensors that the {} of its config.json does not have: {}{}. They would be ignored, so the "
        "folder is refused",
        folder_.string(), family_.title,
        fmt::join(left.begin(), left.begin() + static_cast<int64_t>(named), ", "), more);
}

// A file may hold both the token table and the matrix of the logits that is tied to it.
void WeightsFolder::check_tied_head(const std::string& head_name) const {
  const InFile in = find(first_tensor_of(kTokenTable));
  const SafetensorsReader::Entry& head = files_.file_of(head_name).entries().at(head_name);
  const SafetensorsReader::Entry& table = in.file.entries().at(in.name);
  check(head.dtype == table.dtype && head.shape == table.shape &&
            std::equal(head.bytes.begin(), head.bytes.end(), table.bytes.begin(), table.bytes.end()),
        "{}: {} and {} differ, but config.json ties them. If the logits have their own matrix, set "
        "\"tie_word_embeddings\": false in a copy of the folder's config.json",
        folder_.string(), head_name, in.name);
}

const SafetensorsReader::Entry& WeightsFolder::entry_of(const std::string& name) const {
  const InFile in = find(name);
  return in.file.entries().at(in.name);
}

int64_t WeightsFolder::read_ahead(const ParamPlace& place) const {
  int64_t bytes = 0;
  for (const TensorPiece& piece : pieces_of(family_, found_.model, place.info)) {
    const std::span<const std::byte> in_file = entry_of(piece.name).bytes;
    tessera::read_ahead(in_file);
    bytes += std::ssize(in_file);
  }
  return bytes;
}

bool WeightsFolder::has_nf4(const ParamPlace& place) const {
  return std::ranges::any_of(pieces_of(family_, found_.model, place.info), [&](const TensorPiece& piece) {
    return Nf4Tensor::is_one(files_, name_in_file(piece.name));
  });
}

std::string WeightsFolder::nf4_difference(const ParamPlace& place, const LayerParts& small_scales) const {
  const std::vector<TensorPiece> pieces = pieces_of(family_, found_.model, place.info);
  for (const TensorPiece& piece : pieces) {
    const std::string name = name_in_file(piece.name);
    if (!Nf4Tensor::is_one(files_, name)) return fmt::format("{} is not in NF4", name);
    if (!is_plain(piece) || place.info.padding > 0)
      return fmt::format("the rows of {} have another order in memory", name);
    const std::string why = Nf4Tensor(files_, name, piece.shape)
                                .difference({.columns = piece.columns, .nested = small_scales[0] > 0});
    if (!why.empty()) return fmt::format("{} {}", name, why);
  }
  if (small_scales[0] == 0) return "";
  if (const int stored = count_of(small_scales); std::ssize(pieces) != stored)
    return fmt::format("{} are {} matrices whose scales have a mean each, and in memory they have {}",
                       place.info.name, pieces.size(), stored);
  return "";
}

void WeightsFolder::read_nf4(const ParamPlace& place, const LayerParts& small_scales,
                             const Nf4Sink& sink) const {
  const std::string difference = nf4_difference(place, small_scales);
  check(difference.empty(), "{}", difference);
  Arena staging = Arena::host();
  const Shape& shape = place.info.shape;
  const bool nested = small_scales[0] > 0;
  const Tensor codes = staging.alloc(MemoryTag::kData, "codes", DType::kU16, {shape.numel() / 4});
  const Tensor scales = staging.alloc(MemoryTag::kData, "scales", DType::kF32,
                                      {words_of_scales(FourBits::kNf4, shape, small_scales)});
  std::fill_n(scales.as<std::byte>(), scales.bytes(), std::byte{0});
  const SmallScalePlaces places(scales_of_each(small_scales, shape[-1]));
  int64_t first = 0;  // element
  size_t matrix = 0;
  for (const TensorPiece& piece : pieces_of(family_, found_.model, place.info)) {
    const Nf4Tensor nf4(files_, name_in_file(piece.name), piece.shape);
    std::ranges::copy(nf4.codes(), codes.as<std::byte>() + first / 2);
    const std::vector<float> widened = nf4.scales();
    if (nested) {
      std::ranges::copy(nf4.scale_codes(), scales.as<std::byte>() + places.first[matrix]);
      std::ranges::copy(nf4.largest(), scales.as<float>() + places.largest_at() + places.groups[matrix]);
      scales.as<float>()[places.means_at() + static_cast<int64_t>(matrix)] = nf4.offset();
    } else {
      std::ranges::copy(widened, scales.as<float>() + first / kNf4Block);
    }
    first += piece.elements(), ++matrix;
  }
  sink(codes, scales);
}

void WeightsFolder::read(const ParamPlace& place, const ParamSink& sink, HandOver hand_over) const {
  if (place.info.name == kPositionTable && place.info.shape[0] > found_.model.context)
    return read_extended(place, sink);
  const std::vector<TensorPiece> pieces = pieces_of(family_, found_.model, place.info);
  const auto is_nf4 = [&](const TensorPiece& piece) {
    return Nf4Tensor::is_one(files_, name_in_file(piece.name));
  };
  const bool is_bf16 = std::ranges::all_of(pieces, [&](const TensorPiece& piece) {
    return is_plain(piece) && !is_nf4(piece) && entry_of(piece.name).dtype == "BF16";
  });
  if (hand_over == HandOver::kAsStored && is_bf16)
    return read_bf16({.pieces = pieces,
                      .find = [&](const std::string& name) -> PlacedTensor {
                        const InFile in = find(name);
                        return {in.file, in.name};
                      },
                      .values = values_},
                     place, sink);
  const auto read = [&](const TensorPiece& piece, std::span<float> out) {
    const InFile in = find(piece.name);
    if (const std::string name = name_in_file(piece.name); Mxfp4Tensor::is_one(files_, name))
      Mxfp4Tensor(files_, name, piece.shape).read(out);
    else if (is_nf4(piece))
      Nf4Tensor(files_, in.name, piece.shape).read(out);
    else
      in.file.read(in.name, piece.shape, out, values_);
  };
  read_pieces({.pieces = pieces, .read = read}, place, sink);
}

void WeightsFolder::read_extended(const ParamPlace& place, const ParamSink& sink) const {
  const int64_t rows = found_.model.context, C = place.info.shape[1];
  const InFile in = find(pieces_of(family_, found_.model, place.info).front().name);
  Arena staging = Arena::host();
  const Tensor table = staging.alloc(MemoryTag::kData, "positions found", DType::kF32, {rows, C});
  const Tensor extended =
      staging.alloc(MemoryTag::kData, "positions extended", DType::kF32, place.info.shape);
  const std::span<float> values(table.as<float>(), static_cast<size_t>(table.numel()));
  in.file.read(in.name, table.shape, values, values_);
  extend_positions(extension_, values, C, {extended.as<float>(), static_cast<size_t>(extended.numel())});
  sink(place, extended);
}

WeightsWriter::WeightsWriter(const fs::path& path, const ModelConfig& model,
                             const std::vector<std::string>& prefixes, DType dtype, const Has& has,
                             Values values)
    : layout_(model, number_format(dtype)), file_(path, entries_of(layout_, model, prefixes, has), values) {}

void WeightsWriter::write(const ParamInfo& info, const Tensor& values) {
  layout_.visit(info, values, [&](const FileTensor&, std::span<const float> rows) { file_.write(rows); });
}

FileChecksum WeightsWriter::commit() { return file_.commit(); }

std::vector<std::string> tensor_names(const ModelConfig& model, const std::vector<std::string>& prefixes,
                                      const WeightsWriter::Has& has) {
  std::vector<std::string> names;
  for (const FileTensor& tensor :
       entries_of(HuggingFaceLayout(model, NumberFormat::kF32), model, prefixes, has))
    names.push_back(tensor.name);
  return names;
}

int64_t read_param(const TensorFiles& files, const ModelConfig& model, const ParamPlace& place,
                   const std::string& prefix, const ParamSink& sink) {
  int64_t bytes = 0;
  const std::vector<TensorPiece> pieces = pieces_of(family_for(model), model, place.info);
  const auto read = [&](const TensorPiece& piece, std::span<float> out) {
    const std::string name = prefix + piece.name;
    const SafetensorsReader& file = files.file_of(name);
    file.read(name, piece.shape, out, Values::kAny);
    bytes += std::ssize(file.entries().at(name).bytes);
  };
  read_pieces({.pieces = pieces, .read = read}, place, sink);
  return bytes;
}

std::vector<std::string> check_weights(const fs::path& folder, const ModelConfig& model,
                                       const FolderOptions& options) {
  return WeightsFolder(folder, model, options).notices();
}

int64_t load_weights(const fs::path& folder, const ModelConfig& model, const ParamSink& sink,
                     const LoadOptions& options) {
  constexpr int64_t kAhead = int64_t{1} << 29;  // bytes that the disk reads while others are handed over
  const WeightsFolder weights(folder, model, options.folder, options.values);
  std::vector<ParamPlace> places = ParamLayout(model.base(), 1).places;
  if (options.reads) std::erase_if(places, [&](const ParamPlace& place) { return !options.reads(place); });
  std::vector<int64_t> bytes;
  int64_t ahead = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    for (; bytes.size() < places.size() && ahead < kAhead; ahead += bytes.back())
      bytes.push_back(weights.read_ahead(places[bytes.size()]));
    weights.read(places[i], sink, options.hand_over);
    ahead -= bytes[i];
  }
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

}  // namespace tessera
