#include "server/worker/dispatch/dispatch_table.h"

#include "server/worker/dispatch/table/entry.h"

namespace gpupool::worker {
namespace {

const DispatchTable& dispatch_table() {
    static const DispatchTable table = [] {
        DispatchTable made;
        add_general_calls(made);
        add_code_calls(made);
        add_memory_calls(made);
        add_copies_calls(made);
        add_arrays_calls(made);
        add_streams_calls(made);
        add_graphs_calls(made);
        add_other_calls(made);
        add_internal_calls(made);
        return made;
    }();
    return table;
}

}  // namespace

DispatchEntry& DispatchTable::entry_at(calls::Opcode opcode) {
    return opcode >= calls::kFirstInternalOpcode ? internal_.at(opcode - calls::kFirstInternalOpcode)
                                                 : symbols_.at(opcode);
}

DispatchEntry DispatchTable::find(calls::Opcode opcode) const noexcept {
    if (opcode >= calls::kFirstInternalOpcode) {
        const std::size_t index = opcode - calls::kFirstInternalOpcode;
        return index < kInternal ? internal_[index] : DispatchEntry{};
    }
    return opcode < kSymbols ? symbols_[opcode] : DispatchEntry{};
}

Serve serve_function(calls::Opcode opcode) noexcept {
    return dispatch_table().find(opcode).serve;
}

Passage passage_of(calls::Opcode opcode) noexcept {
    return dispatch_table().find(opcode).passage;
}

}  // namespace gpupool::worker
