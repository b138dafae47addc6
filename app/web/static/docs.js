/** The page about the API: what /openapi.json says, and a way to try it. */

const swagger = document.createElement("script");
swagger.src = "/docs/swagger-ui-bundle.js"; // no module
swagger.onload = () => {
  SwaggerUIBundle({ url: "/openapi.json", dom_id: "#docs", deepLinking: true, validatorUrl: null });
};
document.head.append(swagger);
