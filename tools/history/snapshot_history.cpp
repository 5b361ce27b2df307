#include "tools/history/readers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <istream>
#include <nlohmann/json.hpp>
#include <optional>
#include <streambuf>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cachalot/errors.h"
#include "tools/history/snapshot_builder.h"
#include "tools/quoted.h"

namespace cachalot::tools {
namespace {

// An InputFile as a stream for parsers. It ends where the memory for the file would: a parser holds what it cannot yet give us.
class FileStream : public std::streambuf {
 public:
  explicit FileStream(InputFile& file) : file_(file), left_(file.memory_limit() / 4) {}
  bool is_too_long() const { return left_ == 0; }
  // Returns how many bytes the parser has taken.
  std::size_t position() const { return before_ + static_cast<std::size_t>(gptr() - eback()); }

 protected:
  int_type underflow() override {
    const std::size_t bytes = file_.read(buffer_.data(), std::min(buffer_.size(), left_));
    left_ -= bytes;
    before_ = position();
    setg(buffer_.data(), buffer_.data(), buffer_.data() + bytes);
    return bytes == 0 ? traits_type::eof() : traits_type::to_int_type(*gptr());
  }

 private:
  InputFile& file_;
  std::size_t left_;
  std::size_t before_ = 0;  // bytes of earlier buffers
  std::array<char, 1 << 16> buffer_;
};

// Protocol 2 and later begin with PROTO; the dicts and lists of 0 and 1 with a mark or with themselves.
bool begins_pickle(unsigned char byte) {
  const std::string_view first = "\x80(}]";
  return first.find(static_cast<char>(byte)) != std::string_view::npos;
}

// A list in JSON begins with '[', one in a pickle with ']'.
bool begins_json(unsigned char byte) { return byte == '{' || byte == '['; }

// Throws InvalidArgument, which says what the file is, unless it begins as a snapshot.
void require_snapshot(InputFile& file) {
  const std::optional<unsigned char> first = file.peek();
  const std::string trouble = file.trouble();
  CACHALOT_REQUIRE(trouble.empty(), "{}: {}", file.path(), trouble);
  CACHALOT_REQUIRE(first.has_value(), "{}: the file is empty", file.path());
  const std::string foreign = foreign_format(file.begin(), "memory snapshot");
  CACHALOT_REQUIRE(foreign.empty(), "{}: {}", file.path(), foreign);
  const std::optional<HistoryFormat> text = text_format(file.begin());
  CACHALOT_REQUIRE(text != HistoryFormat::cachalot_trace,
                   "{}: is an allocation trace, not a memory snapshot: `cachalot replay` takes traces", file.path());
  CACHALOT_REQUIRE(text != HistoryFormat::rmm_csv,
                   "{}: is a log of RMM, not a memory snapshot: `cachalot replay` takes logs", file.path());
  CACHALOT_REQUIRE(is_snapshot(file), "{}: {}", file.path(), unknown_format(file.begin()));
}

// Takes what nlohmann's parser sees. A list or dict goes into what holds it when it ends. It keeps its own stack and does
// not recurse, as the parser does not.
class SnapshotSax : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit SnapshotSax(SnapshotBuilder& builder) : builder_(builder) {}

  bool null() override { return add({}); }
  bool boolean(bool value) override { return add(Part::of_boolean(value)); }
  bool number_integer(number_integer_t value) override { return add(Part::of_integer(value)); }
  bool number_unsigned(number_unsigned_t value) override { return add(Part::of_natural(value)); }
  bool number_float(number_float_t value, const string_t&) override { return add(Part::of_real(value)); }
  bool string(string_t& value) override { return add(builder_.text(value)); }
  bool binary(binary_t&) override { return false; }  // of other formats than JSON
  bool start_object(std::size_t) override { return open(Container::Kind::dict); }
  bool key(string_t& value) override {
    open_.back().key = builder_.text(value);
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(Container::Kind::list); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t position, const std::string& last, const nlohmann::json::exception&) override {
    trouble_ = fmt::format("byte {}: this is not JSON: {}", position, Quoted{last});
    return false;
  }

  const std::string& trouble() const { return trouble_; }
  Part root() const { return root_; }

 private:
  struct Open {
    Part part;
    Part key;  // the newest, of a dict
    bool is_dict = false;
  };

  bool add(Part part) {
    if (open_.empty()) {
      root_ = part;
    } else if (const Open& parent = open_.back(); parent.is_dict) {
      builder_.set(parent.part, parent.key, part);
    } else {
      builder_.append(parent.part, part);
    }
    return true;
  }
  bool open(Container::Kind kind) {
    if (open_.size() == open_.capacity()) builder_.budget().charge((open_.size() + 1) * sizeof(Open));
    open_.push_back({builder_.parts().open(kind), {}, kind == Container::Kind::dict});
    return true;
  }
  bool close() {
    const Part part = open_.back().part;
    open_.pop_back();
    return add(part);
  }

  SnapshotBuilder& builder_;
  std::vector<Open> open_;
  std::string trouble_;
  Part root_;
};

// Reads one JSON text, which fills the file, into the builder, and returns what it is. Throws InvalidArgument, which names
// position and rule.
Part read_snapshot_json(InputFile& file, SnapshotBuilder& builder) {
  SnapshotSax sax(builder);
  FileStream buffer(file);
  std::istream stream(&buffer);
  try {
    nlohmann::json::sax_parse(stream, &sax);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("byte {}: {}", buffer.position(), error.what()));
  }
  CACHALOT_REQUIRE(file.trouble().empty(), "{}", file.trouble());
  CACHALOT_REQUIRE(!buffer.is_too_long(), "longer than the most for a file of its size");
  CACHALOT_REQUIRE(sax.trouble().empty(), "{}", sax.trouble());
  return sax.root();
}

History of_json(InputFile file) {
  SnapshotBuilder builder(file.memory_limit());
  try {
    const Part root = read_snapshot_json(file, builder);
    return builder.finish(root);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", file.path(), error.what()));
  }
}

}  // namespace

bool is_snapshot(InputFile& file) {
  const std::optional<unsigned char> first = file.peek();
  return first && (begins_json(*first) || begins_pickle(*first));
}

History read_snapshot_history(InputFile file) {
  const std::string path = file.path();
  require_snapshot(file);
  const bool is_json = begins_json(file.peek().value_or(0));
  History history = is_json ? of_json(std::move(file)) : read_pickle(std::move(file));
  history.path = path;
  history.format = is_json ? HistoryFormat::torch_json : HistoryFormat::torch_pickle;
  return history;
}

}  // namespace cachalot::tools
