/** The page about the API: shows /openapi.json, and lets one try it. */

const swagger = document.createElement("script");
swagger.src = "/docs/swagger-ui-bundle.js"; // no module
swagger.onload = () => {
  SwaggerUIBundle({ url: "/openapi.json", dom_id: "#docs", deepLinking: true, validatorUrl: null });
};
document.head.append(swagger);
