// The table of instructions that depend on nothing but their operands: one line per mnemonic in the ops_*.cpp files.
//
// Each ops file is compiled twice, for any x86-64 and for AVX2 machines; op_table() returns the set for this machine.
// Other instructions are lowered by code of their own (memory, control flow: lower_*.cpp) or refused.
//
// Ownership: static. Threads: read only after first use. Errors: null for a missing mnemonic.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <unordered_map>

#include "server/softgpu/exec/code.h"

namespace gpupool::softgpu {

// Element type of an operand's slot.
enum class Slot : std::uint8_t { none, pred, bits16, bits32, bits64, float32, float64 };

std::uint32_t slot_bytes(Slot slot) noexcept;  // size of the whole slot, for all lanes

struct Op {
    OpFn fn = nullptr;
    Slot d = Slot::none;
    Slot sources[4] = {Slot::none, Slot::none, Slot::none, Slot::none};
    Slot second = Slot::none;  // a second destination, as in `setp p|q` and `shfl d|p`
    Flow flow = Flow::plain;
};

class OpTable {
  public:
    void add(std::initializer_list<std::string_view> mnemonics, const Op& op);
    const Op* find(std::string_view mnemonic) const;

  private:
    std::unordered_map<std::string_view, Op> ops_;
};

const OpTable& op_table();

// One set of registration functions per instruction set (see this folder's CMakeLists.txt).
#define GPUPOOL_SOFTGPU_OP_FILES(X) \
    X(integer)                      \
    X(bits)                         \
    X(compare)                      \
    X(float32)                      \
    X(float64)                      \
    X(approx) X(convert) X(warp) X(memory) X(atomic) X(special) X(half) X(texture) X(matrix) X(async) X(packed)
#define X(file)                           \
    namespace ops_base {                  \
    void register_##file(OpTable& table); \
    }                                     \
    namespace ops_avx2 {                  \
    void register_##file(OpTable& table); \
    }
GPUPOOL_SOFTGPU_OP_FILES(X)
#undef X

}  // namespace gpupool::softgpu
