// The handles among a call's outputs, from the driver's to the client's, so that a program gets back the handles that
// it made: alone, in an array or in a struct.
//
// Threads: the dispatcher's alone, as HandleTable.
#pragma once

#include "protocol/codec/command.h"
#include "server/worker/session/handle_table.h"

namespace gpupool::worker {

namespace detail {

template <class T>
void handles_to_client(HandleTable& handles, T& object) {
    codec::StructTraits<T>::visit(object, [&](auto& handle) { handle = handles.client_handle(handle); });
}

}  // namespace detail

// Does the dispatcher translate the handles in this parameter's output? Handlers of served calls (GraphNode) translate
// those in structs themselves.
template <class Call, int Index>
inline constexpr bool has_output_handles = [] {
    using S = codec::Slot<Call, Index>;
    if constexpr (codec::has_output<Call, Index>) {
        return codec::is_handle<typename S::Pointee> ||
               (codec::StructTraits<typename S::Pointee>::has_handles && !calls::is_served<Call>);
    } else {
        return false;
    }
}();

// For a call that has succeeded. Binds the handle that the client minted for what the call created.
template <class Call, int Index>
void outputs_to_client(HandleTable& handles, codec::Slot<Call, Index>& slot) {
    using S = codec::Slot<Call, Index>;
    if constexpr (S::kind == codec::Shape::creates) {
        if (slot.minted != 0) {
            handles.bind(codec::from_wire<typename S::Pointee>(slot.minted), slot.object);
        }
    } else if constexpr (has_output_handles<Call, Index>) {
        if constexpr (S::kind == codec::Shape::out_array) {
            for (auto& element : slot.object) {
                detail::handles_to_client(handles, element);
            }
        } else {
            detail::handles_to_client(handles, slot.object);
        }
    }
}

}  // namespace gpupool::worker
