# The client: module mf_client (client/*.c), libmemferry for other programs (shared and static,
# exporting only memferry_*), and the program memferry (memferry.c and what is globbed as its
# sources below: verbs, output, and data made into tokens).
file(GLOB client_sources CONFIGURE_DEPENDS client/*.c)
file(GLOB cli_sources CONFIGURE_DEPENDS client/command*.c client/render*.c client/table.c
  client/token*.c client/chat.c client/documents.c client/inputs.c)
list(REMOVE_ITEM client_sources ${cli_sources} ${CMAKE_SOURCE_DIR}/client/memferry.c)

if(client_sources)
  add_library(mf_client STATIC ${client_sources})
  target_compile_options(mf_client PRIVATE ${MF_WARNINGS})
  target_include_directories(mf_client PUBLIC client/include)
  mf_link(mf_client PUBLIC mf_proto mf_core PkgConfig::grpc PkgConfig::inih)
endif()

# Not with MF_STATIC: Debian's libre2.a is not position independent.
if(TARGET mf_client AND NOT MF_STATIC)
  set(library_parts mf_client mf_proto mf_core)
  set(library_objects)
  foreach(part IN LISTS library_parts)
    if(TARGET ${part})
      list(APPEND library_objects $<TARGET_OBJECTS:${part}>)
    endif()
  endforeach()
  set(library_needs PkgConfig::grpc PkgConfig::libprotobuf_c PkgConfig::jansson
    PkgConfig::libcrypto PkgConfig::inih Threads::Threads m)

  set(exports ${CMAKE_CURRENT_LIST_DIR}/libmemferry.map)
  add_library(memferry_shared SHARED ${library_objects})
  set_target_properties(memferry_shared PROPERTIES OUTPUT_NAME memferry LINKER_LANGUAGE C
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR} LINK_DEPENDS ${exports})
  target_include_directories(memferry_shared INTERFACE client/include)
  target_link_options(memferry_shared PRIVATE -Wl,--version-script=${exports})
  target_link_libraries(memferry_shared PRIVATE ${library_needs})

  # One object with the other names made local, so that they cannot clash in a user's program.
  set(merged ${CMAKE_CURRENT_BINARY_DIR}/libmemferry.o)
  add_custom_command(OUTPUT ${merged}
    COMMAND ${CMAKE_LINKER} -r -o ${merged} ${library_objects}
    COMMAND ${CMAKE_OBJCOPY} --wildcard "--keep-global-symbol=memferry_[a-z]*" ${merged}
    DEPENDS ${library_objects} COMMAND_EXPAND_LISTS VERBATIM)
  add_library(memferry_static STATIC ${merged})
  set_target_properties(memferry_static PROPERTIES OUTPUT_NAME memferry LINKER_LANGUAGE C)
  set_source_files_properties(${merged} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  target_include_directories(memferry_static INTERFACE client/include)
  target_link_libraries(memferry_static INTERFACE ${library_needs})

  install(TARGETS memferry_shared memferry_static)
  if(EXISTS ${CMAKE_SOURCE_DIR}/client/include/memferry.h)
    install(FILES client/include/memferry.h TYPE INCLUDE)
  endif()
endif()

if(cli_sources)
  add_library(mf_cli STATIC ${cli_sources})
  target_compile_options(mf_cli PRIVATE ${MF_WARNINGS})
  target_include_directories(mf_cli PUBLIC client/include)
  mf_link(mf_cli PUBLIC mf_client mf_proto mf_core)
endif()
if(EXISTS ${CMAKE_SOURCE_DIR}/client/memferry.c)
  add_executable(memferry client/memferry.c)
  target_compile_options(memferry PRIVATE ${MF_WARNINGS})
  mf_link(memferry PRIVATE mf_cli mf_client mf_core)
  install(TARGETS memferry)
endif()
