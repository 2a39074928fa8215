#include "data/input_file.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "kernels/base/check.h"
#include "kernels/base/lfs_pointer.h"
#include "kernels/base/system_error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBufferBytes = 1 << 18;  // compressed

class Gzip final : public Decompressor {
 public:
  Gzip() {
    constexpr int kWindowBits = 15, kGzipHeader = 16;
    check(inflateInit2(&stream_, kWindowBits + kGzipHeader) == Z_OK, "zlib cannot start");
  }
  ~Gzip() override { inflateEnd(&stream_); }
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;

  size_t decompress(std::span<const char>& in, std::span<char> out) override {
    if (between_parts_ && in.empty()) return 0;
    if (between_parts_) inflateReset(&stream_);
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
    stream_.avail_in = static_cast<uInt>(in.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(out.size());
    const int code = inflate(&stream_, Z_NO_FLUSH);
    between_parts_ = code == Z_STREAM_END;
    // Z_BUF_ERROR: nothing could be done with so few bytes.
    check(code == Z_OK || code == Z_STREAM_END || code == Z_BUF_ERROR, "{}",
          stream_.msg ? stream_.msg : zError(code));
    in = in.last(stream_.avail_in);
    return out.size() - stream_.avail_out;
  }
  bool is_between_parts() const override { return between_parts_; }

 private:
  z_stream stream_{};
  bool between_parts_ = true;
};

class Zstandard final : public Decompressor {
 public:
  Zstandard() {
    check(stream_ != nullptr, "zstd cannot start");
    ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, 31);  // what zstd --long=31 writes
  }
  size_t decompress(std::span<const char>& in, std::span<char> out) override {
    if (between_parts_ && in.empty()) return 0;
    ZSTD_inBuffer from{in.data(), in.size(), 0};
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    const size_t code = ZSTD_decompressStream(stream_.get(), &to, &from);
    check(!ZSTD_isError(code), "{}", ZSTD_getErrorName(code));
    between_parts_ = code == 0;
    in = in.subspan(from.pos);
    return to.pos;
  }
  bool is_between_parts() const override { return between_parts_; }

 private:
  struct Free {
    void operator()(ZSTD_DCtx* stream) const { ZSTD_freeDCtx(stream); }
  };
  std::unique_ptr<ZSTD_DCtx, Free> stream_{ZSTD_createDCtx()};
  bool between_parts_ = true;
};

Descriptor open_input(const fs::path& input) {
  const int file = input == kStandardInput ? dup(STDIN_FILENO) : open(input.c_str(), O_RDONLY | O_CLOEXEC);
  check_system(file >= 0, "cannot read {}: {}", input.string());
  return Descriptor(file);
}

}  // namespace

fs::path uncompressed_name(const fs::path& input) {
  return input.extension() == ".gz" || input.extension() == ".zst" ? fs::path(input).replace_extension()
                                                                   : input;
}

InputFile::InputFile(const fs::path& input)
    : name_(input == kStandardInput ? "standard input" : input.string()), file_(open_input(input)) {
  if (input.extension() == ".gz") decompressor_ = std::make_unique<Gzip>();
  if (input.extension() == ".zst") decompressor_ = std::make_unique<Zstandard>();
  if (decompressor_) buffer_.resize(kBufferBytes);
}

size_t InputFile::read_bytes(std::span<char> out) {
  const ssize_t count = ::read(file_.get(), out.data(), out.size());
  check_system(count >= 0, "cannot read {}: {}", name_);
  // One read gives all of so small a file.
  if (bytes_read_ == 0) refuse_lfs_pointer({out.data(), static_cast<size_t>(count)}, name_);
  bytes_read_ += count;
  return static_cast<size_t>(count);
}

size_t InputFile::read(std::span<char> out) {
  if (!decompressor_) return read_bytes(out);
  while (true) {
    size_t count = 0;
    try {
      count = decompressor_->decompress(unused_, out);
    } catch (const Error& error) {
      fail("{} is damaged near its byte {}: {}; is it of the format that its name says?", name_,
           bytes_read_ - std::ssize(unused_), error.what());
    }
    if (count > 0) return count;
    if (!unused_.empty()) continue;
    unused_ = std::span(buffer_).first(read_bytes(buffer_));
    if (!unused_.empty()) continue;
    check(decompressor_->is_between_parts(),
          "{} is truncated: its compressed text goes on after its {} bytes", name_, bytes_read_);
    return 0;
  }
}

}  // namespace tessera
