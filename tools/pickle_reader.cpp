#include "tools/pickle_reader.h"

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <utility>

#include "cachalot/errors.h"
#include "tools/pickle_input.h"
#include "tools/pickle_opcodes.h"
#include "tools/pickle_scalars.h"
#include "tools/pickle_stack.h"

namespace cachalot::tools {
namespace {

constexpr std::uint64_t kNewestProtocol = 5;
constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

// Carries out the opcodes.
class PickleReader {
 public:
  explicit PickleReader(InputFile file)
      : document_(std::make_unique<PlainDocument>(file.memory_limit())),
        input_(std::move(file), *document_),
        stack_(input_, *document_) {}

  std::unique_ptr<PlainDocument> read() {
    try {
      while (step()) {
      }
    } catch (const BrokenPickle& broken) {
      throw InvalidArgument(fmt::format("{}: {}", input_.path(), broken.what()));
    } catch (const InvalidArgument& error) {  // the document's limit
      throw InvalidArgument(fmt::format("{}: byte {}: {}", input_.path(), input_.opcode_at(), error.what()));
    }
    return std::move(document_);
  }

 private:
  // One opcode; false: it was the last.
  bool step() {
    const Opcode opcode = input_.opcode();
    if (opcode == Opcode::stop) {
      document_->set_root(stack_.result());
      input_.require_end();
      return false;
    }
    if (const char* name = refused_name(opcode)) {
      input_.require(false, "{} is refused: it names or calls something of Python's, and only plain data is read",
                     name);
    }
    input_.require(number(opcode) || text(opcode) || container(opcode) || memo(opcode) || other(opcode),
                   "there is no such opcode: this is no pickle, or a damaged one");
    return true;
  }

  // ---- opcodes, by what they are about; false: it is none of these

  bool number(Opcode opcode) {
    switch (opcode) {
      case Opcode::none:
        stack_.push({});
        return true;
      case Opcode::newtrue:
      case Opcode::newfalse:
        stack_.push(Value::of_boolean(opcode == Opcode::newtrue));
        return true;
      case Opcode::binint:
        stack_.push(Value::of_integer(static_cast<std::int32_t>(input_.natural(4))));
        return true;
      case Opcode::binint1:
        stack_.push(Value::of_integer(static_cast<std::int64_t>(input_.natural(1))));
        return true;
      case Opcode::binint2:
        stack_.push(Value::of_integer(static_cast<std::int64_t>(input_.natural(2))));
        return true;
      case Opcode::long1:
        stack_.push(long_integer(input_, input_.natural(1)));
        return true;
      case Opcode::long4:
        stack_.push(long_integer(input_, input_.natural(4)));
        return true;
      case Opcode::binfloat:
        stack_.push(Value::of_real(std::bit_cast<double>(__builtin_bswap64(input_.natural(8)))));
        return true;
      case Opcode::int_line:
        stack_.push(integer_or_boolean(input_, input_.line()));
        return true;
      case Opcode::long_line:
        stack_.push(long_decimal(input_, input_.line()));
        return true;
      case Opcode::float_line:
        stack_.push(real(input_, input_.line()));
        return true;
      default:
        return false;
    }
  }

  bool text(Opcode opcode) {
    switch (opcode) {
      case Opcode::short_binunicode:
      case Opcode::short_binstring:
        stack_.push(document_->add_text(input_.bytes(input_.natural(1))));
        return true;
      case Opcode::binunicode:
      case Opcode::binstring:
        stack_.push(document_->add_text(input_.bytes(input_.natural(4))));
        return true;
      case Opcode::binunicode8:
        stack_.push(document_->add_text(input_.bytes(input_.natural(8))));
        return true;
      case Opcode::short_binbytes:
        stack_.push(document_->add_bytes(input_.bytes(input_.natural(1))));
        return true;
      case Opcode::binbytes:
        stack_.push(document_->add_bytes(input_.bytes(input_.natural(4))));
        return true;
      case Opcode::binbytes8:
      case Opcode::bytearray8:
        stack_.push(document_->add_bytes(input_.bytes(input_.natural(8))));
        return true;
      case Opcode::unicode:
        stack_.push(document_->add_text(unescaped_unicode(input_, input_.line(kNoLimit))));
        return true;
      case Opcode::string:
        stack_.push(document_->add_text(unescaped_string(input_, input_.line(kNoLimit))));
        return true;
      default:
        return false;
    }
  }

  bool container(Opcode opcode) {
    switch (opcode) {
      case Opcode::empty_list:
        stack_.push(document_->add_list());
        return true;
      case Opcode::empty_tuple:
        stack_.push(document_->add_list({}, Value::Kind::tuple));
        return true;
      case Opcode::empty_set:
        stack_.push(document_->add_list({}, Value::Kind::set));
        return true;
      case Opcode::empty_dict:
        stack_.push(document_->add_dict());
        return true;
      case Opcode::list:
        stack_.collect_to_mark(Value::Kind::list);
        return true;
      case Opcode::tuple:
        stack_.collect_to_mark(Value::Kind::tuple);
        return true;
      case Opcode::frozenset:
        stack_.collect_to_mark(Value::Kind::set);
        return true;
      case Opcode::tuple1:
      case Opcode::tuple2:
      case Opcode::tuple3:
        stack_.collect(static_cast<std::size_t>(opcode) - static_cast<std::size_t>(Opcode::tuple1) + 1,
                       Value::Kind::tuple);
        return true;
      case Opcode::dict:
        stack_.collect_dict_to_mark();
        return true;
      case Opcode::append:
        stack_.append();
        return true;
      case Opcode::appends:
        stack_.extend_to_mark(Value::Kind::list);
        return true;
      case Opcode::additems:
        stack_.extend_to_mark(Value::Kind::set);
        return true;
      case Opcode::setitem:
        stack_.set_item();
        return true;
      case Opcode::setitems:
        stack_.set_items_to_mark();
        return true;
      default:
        return false;
    }
  }

  bool memo(Opcode opcode) {
    switch (opcode) {
      case Opcode::memoize:
        stack_.memoize();
        return true;
      case Opcode::put:
        stack_.memoize(memo_index(input_, input_.line()));
        return true;
      case Opcode::binput:
        stack_.memoize(input_.natural(1));
        return true;
      case Opcode::long_binput:
        stack_.memoize(input_.natural(4));
        return true;
      case Opcode::get:
        stack_.recall(memo_index(input_, input_.line()));
        return true;
      case Opcode::binget:
        stack_.recall(input_.natural(1));
        return true;
      case Opcode::long_binget:
        stack_.recall(input_.natural(4));
        return true;
      default:
        return false;
    }
  }

  bool other(Opcode opcode) {
    switch (opcode) {
      case Opcode::mark:
        stack_.push_mark();
        return true;
      case Opcode::pop:
        stack_.pop();
        return true;
      case Opcode::pop_mark:
        stack_.pop_to_mark();
        return true;
      case Opcode::dup:
        stack_.duplicate();
        return true;
      case Opcode::proto: {
        const std::uint64_t protocol = input_.natural(1);
        input_.require(protocol <= kNewestProtocol, "protocol {}: 0 to {} can be read", protocol, kNewestProtocol);
        return true;
      }
      case Opcode::frame:  // for readers that fetch whole frames: nothing in it is needed here
        input_.natural(8);
        return true;
      default:
        return false;
    }
  }

  std::unique_ptr<PlainDocument> document_;
  PickleInput input_;
  PickleStack stack_;
};

}  // namespace

std::unique_ptr<PlainDocument> read_pickle(InputFile file) { return PickleReader(std::move(file)).read(); }

}  // namespace cachalot::tools
