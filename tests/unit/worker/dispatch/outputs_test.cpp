// Every handle that a call of the table returns, alone, in an array or in a struct, comes back as the client's.
#include "server/worker/dispatch/outputs.h"

#include <gtest/gtest.h>

#include <vector>

namespace gpupool::worker {
namespace {

// Puts a handle of the driver's into each place for one, and binds it to a handle of the client's.
template <class T>
void fill(HandleTable& handles, T& object, std::vector<std::uint64_t>& clients) {
    codec::StructTraits<T>::visit(object, [&]<class Handle>(Handle& handle) {
        const std::uint64_t serial = clients.size() + 1;
        clients.push_back(codec::make_handle(codec::handle_kind_of<Handle>, serial));
        handle = codec::from_wire<Handle>(0xd0000 + 16 * serial);
        handles.bind(codec::from_wire<Handle>(clients.back()), handle);
    });
}

template <class T>
void expect_clients(T& object, const std::vector<std::uint64_t>& clients, std::size_t& at, std::string_view call) {
    codec::StructTraits<T>::visit(object, [&](auto& handle) {
        ASSERT_LT(at, clients.size()) << call;
        EXPECT_EQ(codec::to_wire(handle), clients[at++]) << call;
    });
}

template <class Call, int Index>
void check_output(std::size_t& checked) {
    using S = codec::Slot<Call, Index>;
    if constexpr (has_output_handles<Call, Index>) {
        HandleTable handles;
        std::vector<std::uint64_t> clients;
        S slot;
        std::size_t at = 0;
        if constexpr (S::kind == codec::Shape::out_array) {
            slot.object.resize(3);
            for (auto& element : slot.object) {
                fill(handles, element, clients);
            }
            outputs_to_client(handles, slot);
            for (auto& element : slot.object) {
                expect_clients(element, clients, at, Call::kName);
            }
        } else {
            fill(handles, slot.object, clients);
            outputs_to_client(handles, slot);
            expect_clients(slot.object, clients, at, Call::kName);
        }
        EXPECT_EQ(at, clients.size()) << Call::kName;
        checked += clients.size();
    }
}

template <class Call, int... Index>
void check_outputs(std::size_t& checked, std::integer_sequence<int, Index...>) {
    (check_output<Call, Index>(checked), ...);
}

// Structs that calls return without a handle in them. A new one belongs here only if none of its members is a handle;
// one with handles is listed with them in protocol/codec/struct_traits.h.
template <class T, class... Plain>
constexpr bool is_one_of = (std::is_same_v<T, Plain> || ...);
template <class T>
constexpr bool has_no_handle =
    std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, std::byte> ||
    is_one_of<T, CUuuid, CUmemAllocationProp, CUmemPoolPtrExportData, CUexecAffinityParam, CUtensorMap,
              CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR, CUDA_ARRAY_SPARSE_PROPERTIES,
              CUDA_ARRAY_MEMORY_REQUIREMENTS, CUDA_TEXTURE_DESC, CUDA_RESOURCE_VIEW_DESC, CUgraphEdgeData,
              ParameterLayout> ||
    // Both sides translate its nodes by hand.
    std::is_same_v<T, CUgraphExecUpdateResultInfo> ||
    // DeviceResources replaces what the driver keeps in it by a number of the worker's own.
    std::is_same_v<T, CUdevResource>;

template <class Call, int Index>
constexpr bool is_translated() {
    if constexpr (codec::has_output<Call, Index>) {
        using Pointee = typename codec::Slot<Call, Index>::Pointee;
        // GraphNode, which a handler describes (server/worker/graphs/graph_params.h).
        return has_output_handles<Call, Index> || has_no_handle<Pointee> || std::is_same_v<Pointee, GraphNode>;
    }
    return true;
}
template <class Call, int... Index>
constexpr bool are_translated(std::integer_sequence<int, Index...>) {
    return (is_translated<Call, Index>() && ... && true);
}

template <class Call>
void check(std::size_t& checked) {
    if constexpr (calls::is_remote<Call>) {
        EXPECT_TRUE(are_translated<Call>(codec::Indices<Call>{})) << Call::kName;
        check_outputs<Call>(checked, codec::Indices<Call>{});
    }
}

TEST(Outputs, ReturnTheClientsHandles) {
    std::size_t checked = 0;
#define GP_CALL(op, symbol, ...) check<calls::symbol>(checked);
#define GP_PER_THREAD(...)
#include "protocol/calls/internal.def"
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD
    EXPECT_GE(checked, 20u);
}

TEST(Outputs, DescribeAMipmappedArrayByTheClientsHandle) {
    using Call = calls::cuTexObjectGetResourceDesc;
    HandleTable handles;
    const auto client = codec::from_wire<CUmipmappedArray>(codec::make_handle(codec::HandleKind::mipmapped_array, 7));
    const auto driver = codec::from_wire<CUmipmappedArray>(0xd000);
    handles.bind(client, driver);
    codec::Slot<Call, Call::pResDesc> slot;
    slot.object.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    slot.object.res.mipmap.hMipmappedArray = driver;
    outputs_to_client(handles, slot);
    EXPECT_EQ(slot.object.res.mipmap.hMipmappedArray, client);
}

TEST(Outputs, LeaveAddressesInAResourceAsTheyAre) {
    using Call = calls::cuTexObjectGetResourceDesc;
    HandleTable handles;
    codec::Slot<Call, Call::pResDesc> slot;
    slot.object.resType = CU_RESOURCE_TYPE_LINEAR;
    slot.object.res.linear.devPtr = 0xd000;
    outputs_to_client(handles, slot);
    EXPECT_EQ(slot.object.res.linear.devPtr, 0xd000u);
    EXPECT_EQ(handles.size(), 0u);
}

}  // namespace
}  // namespace gpupool::worker
