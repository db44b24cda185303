# Rooms: folders of native/ that are compiled apart. A room includes its own headers and those of the rooms it uses
# (and of the rooms these use), always as "room/header.h". No other header is on its include path, so an include that
# the order of rooms forbids does not compile.

set(MEDUSA_NATIVE_DIR "${CMAKE_CURRENT_LIST_DIR}")

# room_NAME: the headers of native/NAME, by forwarding headers in the build folder.
#   medusa_room_headers(NAME [USES ROOM ...])
function(medusa_room_headers name)
    cmake_parse_arguments(ROOM "" "" "USES" ${ARGN})
    set(face "${CMAKE_BINARY_DIR}/rooms/${name}")
    file(GLOB headers RELATIVE "${MEDUSA_NATIVE_DIR}/${name}" CONFIGURE_DEPENDS
         "${MEDUSA_NATIVE_DIR}/${name}/*.h" "${MEDUSA_NATIVE_DIR}/${name}/*.inl")
    foreach(header IN LISTS headers)
        file(CONFIGURE OUTPUT "${face}/${name}/${header}"
             CONTENT "#include \"${MEDUSA_NATIVE_DIR}/${name}/${header}\"\n")
    endforeach()
    add_library(room_${name} INTERFACE)
    target_include_directories(room_${name} INTERFACE "${face}")
    foreach(used IN LISTS ROOM_USES)
        target_link_libraries(room_${name} INTERFACE room_${used})
    endforeach()
endfunction()

# The room compiled: objects medusa_NAME, collected in the list MEDUSA_ROOMS. LIBRARIES: targets whose headers the
# room's sources need, too; other rooms do not get to see these.
#   medusa_room(NAME [USES ROOM ...] [LIBRARIES TARGET ...])
function(medusa_room name)
    cmake_parse_arguments(ROOM "" "" "USES;LIBRARIES" ${ARGN})
    medusa_room_headers(${name} USES ${ROOM_USES})
    file(GLOB sources CONFIGURE_DEPENDS "${MEDUSA_NATIVE_DIR}/${name}/*.cpp")
    medusa_isa_sources(sources)
    add_library(medusa_${name} OBJECT ${sources})
    target_link_libraries(medusa_${name} PRIVATE medusa_options room_${name} ${ROOM_LIBRARIES})
    set_target_properties(medusa_${name} PROPERTIES CXX_VISIBILITY_PRESET hidden)
    set(MEDUSA_ROOMS ${MEDUSA_ROOMS} medusa_${name} PARENT_SCOPE)
endfunction()
