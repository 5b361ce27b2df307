#include "tools/history/snapshot_json.h"

#include <fmt/format.h>

#include <istream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/check.h"
#include "cachalot/errors.h"
#include "tools/file_stream.h"
#include "tools/quoted.h"

namespace cachalot::tools {
namespace {

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

}  // namespace

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

}  // namespace cachalot::tools
